"""Attention pages of conversations: which tokens each head of the served model attends to."""

import math
import secrets

from nanogka.data.conversation import ChatFormat
from nanogka.generate.prompt import least_tokens
from nanogka.serve.protocol import ApiError, Served, read_conversation

MAX_PAGES = 4  # a page has a few MB
MAX_WEIGHT_BYTES = 2**29  # of the T×T attention matrices of all heads, while a page is built


class AttentionPages:
    """Builds the pages of one served model and keeps the last few, each under a random name."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self._kept: dict[str, str] = {}

    @property
    def available(self) -> bool:
        """True if the model can reply in conversations and pages are not turned off."""
        return self.served.model.is_chat_model and self.served.limits.attention

    def read(self, document: object) -> list[int]:
        """Return the token ids of the conversation in `document`. Raises ApiError.

        The memory of a page grows with the square of its length, so the conversation is checked here, before any work.
        """
        if not self.available:
            raise ApiError(400, f"model: {self.served.name} has no attention pages on this server")
        try:
            messages = document.get("messages") if isinstance(document, dict) else None
            conversation = read_conversation(messages)
            tokenizer, most = self.served.engine.tokenizer, 2 * self.served.engine.context
            if (least := least_tokens(tokenizer, conversation)) > most:
                limit = f"at most {most:,}: the context is {most // 2:,} tokens"
                raise ValueError(f"messages: got at least {least:,} tokens, expected {limit}")
            return ChatFormat(tokenizer).render(conversation)[0]
        except ValueError as error:
            raise ApiError(400, str(error), "messages", "invalid_value") from None

    def build(self, ids: list[int]) -> str:
        """Build the page of a conversation: of its first tokens, as many as fit into the context and into memory."""
        # Imported here: with these modules comes matplotlib, which a server needs for nothing else.
        from nanogka.visualize.capture import TracedRun, capture
        from nanogka.visualize.page import build_page

        run, shown = self.served.model.run, ids[: self.longest]
        return build_page([TracedRun(run, capture(run.model, shown), len(shown) < len(ids))])

    @property
    def longest(self) -> int:
        """The number of tokens on a page: the context, or fewer if the matrices would exceed MAX_WEIGHT_BYTES."""
        config = self.served.model.run.gpt_config
        return min(config.sequence_len, math.isqrt(MAX_WEIGHT_BYTES // (4 * config.n_layer * config.n_head)))

    def keep(self, page: str) -> str:
        """Keep a page and return its name."""
        name = secrets.token_urlsafe(16)
        self._kept[name] = page
        while len(self._kept) > MAX_PAGES:
            del self._kept[next(iter(self._kept))]
        return name

    def get(self, name: str) -> str:
        """Return a page. Raises ApiError if it is not kept."""
        if name not in self._kept:
            raise ApiError(404, "this attention page is not kept any more", code="not_found")
        return self._kept[name]
