"""A reply as it grows: text, the code of tool calls, and what the tool returned."""

from nanogka.data.conversation import OUTPUT, PYTHON, TEXT, Part
from nanogka.generate.continuous import TokenOutput


class Reply:
    """One text, token by token. Two calls in a row stay two, because the mark between them is a token of the text."""

    def __init__(self) -> None:
        self.parts: list[Part] = []  # none is empty
        self._kind, self._grows = TEXT, False  # of the last token; whether more of it belongs to the last part

    def add(self, output: TokenOutput) -> None:
        """Add a token."""
        self._grows = self._grows and output.part == self._kind
        self._kind = output.part
        if output.text:
            text = self.parts.pop().text + output.text if self._grows else output.text
            self.parts.append(Part(output.part, text))
            self._grows = True

    @property
    def text(self) -> str:
        """The reply without tool calls."""
        return "".join(part.text for part in self.parts if part.type == TEXT)

    @property
    def calls(self) -> list[tuple[str, str]]:
        """(code, result) of each tool call; the result is empty if there is none."""
        following = [*self.parts[1:], Part(TEXT, "")]
        return [
            (part.text, after.text if after.type == OUTPUT else "")
            for part, after in zip(self.parts, following)
            if part.type == PYTHON
        ]
