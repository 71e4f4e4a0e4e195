"""The parts of a reply as they come: text, the code of a tool call (python), and what the tool returned."""

from nanogka.data.conversation import OUTPUT, PYTHON, TEXT, Part
from nanogka.generate.continuous import TokenOutput


class ReplyParts:
    """Grows with each token of one text. Two calls in a row stay two: the token between them is a mark of the text."""

    def __init__(self) -> None:
        self._grown: list[list[str]] = []  # [type, text]

    def add(self, output: TokenOutput) -> None:
        """Add a token."""
        if not self._grown or self._grown[-1][0] != output.part:
            self._grown.append([output.part, ""])
        self._grown[-1][1] += output.text

    @property
    def parts(self) -> list[Part]:
        """The parts so far."""
        return [Part(kind, text) for kind, text in self._grown if text]

    @property
    def text(self) -> str:
        """The reply without tool calls."""
        return "".join(part.text for part in self.parts if part.type == TEXT)

    @property
    def calls(self) -> list[tuple[str, str]]:
        """(code, result) of each tool call; a call without a result has an empty one."""
        tools = [part for part in self.parts if part.type != TEXT]
        after = [*tools[1:], Part(TEXT, "")]
        return [(a.text, b.text if b.type == OUTPUT else "") for a, b in zip(tools, after) if a.type == PYTHON]
