"""Flags of the server, including the limits of requests. Imports nothing of the extra `serve`."""

import re
from dataclasses import dataclass

from nanogka.common.cli import DeviceSettings, WhichRun, flag
from nanogka.common.errors import Errors
from nanogka.common.formatting import one_line

KEY_VARIABLE = "NANOGKA_API_KEY"
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]+")
USUAL_PORT = re.compile(r"^(http://[^/]+(?=:80$)|https://[^/]+(?=:443$)).*")  # browsers leave it out
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Limits:
    """Limits of one request, and of all together."""

    max_batch: int = flag(32, "maximum texts generated together", ge=1)
    max_queue: int = flag(64, "maximum waiting requests; the next one gets 429", ge=1)
    max_n: int = flag(8, "maximum texts per request (n)", ge=1)
    max_tokens: int = flag(0, "maximum generated tokens per text; 0: as many as the context holds", ge=0)
    max_request_bytes: int = flag(2**20, "maximum bytes of a request's body; a larger one gets 413", ge=1)
    attention: bool = flag(True, "serve /v1/attention; building a page delays all replies")
    truncate: bool = flag(
        False, "drop the oldest turns of a conversation that exceeds the context, instead of replying 400"
    )


@dataclass(frozen=True)
class ServeSettings(Limits, WhichRun, DeviceSettings):
    """Settings."""

    name: str = flag("", "the model's name for clients (default: the run's tag)")
    host: str = flag("127.0.0.1", "address to listen on; 0.0.0.0: all addresses, for other machines too")
    port: int = flag(8000, "port; 0: any free port", ge=0, le=2**16 - 1)
    allowed_hosts: str = flag(
        "", "host names that requests may use, separated by commas (default: loopback's on loopback, otherwise any)"
    )
    api_key: str = flag("", f"key that clients must send; {KEY_VARIABLE} in the environment keeps it out of `ps`")
    cors_origin: str = flag("", "origins of web pages that may use the server, separated by commas, or * for any")
    own_questions: bool = flag(False, "offer questions of your own conversations on the chat page, to every client")
    access_log: bool = flag(False, "print a line for each request")

    @property
    def origins(self) -> list[str]:
        """The origins of pages that may use the server, as browsers write them."""
        names = (name.strip().lower().rstrip("/") for name in self.cors_origin.split(","))
        return [USUAL_PORT.sub(r"\1", name) for name in names if name]

    @property
    def hosts(self) -> list[str]:
        """The host names that requests may use."""
        names = [name.strip() for name in self.allowed_hosts.split(",") if name.strip()]
        return names or (list(LOOPBACK) if self.host in LOOPBACK else ["*"])

    def check(self, errors: Errors) -> None:
        """Record every setting that contradicts another one."""
        errors.require(self.name == one_line(self.name), "name", self.name, "printable characters")
        errors.require(self.max_n <= self.max_batch, "max_n", self.max_n, "at most --max-batch")
        wrong = [name for name in self.origins if not (name in ("*", "null") or ORIGIN.fullmatch(name))]
        expected = "origins such as https://example.org, * for any, or null for files"
        errors.require(not wrong, "cors_origin", self.cors_origin, expected)
        bad = [host for host in self.hosts if "*" in host[1:] or (host.startswith("*") and host[1:2] not in ("", "."))]
        errors.require(not bad, "allowed_hosts", self.allowed_hosts, "names, *.NAME, or * for any")
