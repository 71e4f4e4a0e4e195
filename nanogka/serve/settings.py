"""Settings of the server: its flags, and the limits that they set to requests."""

from dataclasses import dataclass, fields

from nanogka.cli import flag, flag_name
from nanogka.problems import Problems

KEY_VARIABLE = "NANOGKA_API_KEY"
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Limits:
    """Limits of one request, and of all together; see the flags of the same names."""

    max_batch: int = 32
    max_queue: int = 64
    max_n: int = 8
    max_tokens: int = 0
    max_request_bytes: int = 2**20
    request_seconds: float = 30.0


@dataclass(frozen=True)
class ServeSettings:
    """The settings of `scripts.serve`."""

    run: str | None = flag(None, "a run's tag or folder (default: the run trained last)")
    step: int | None = flag(None, "the checkpoint of this step (default: the newest)")
    name: str = flag("", "the model's name for clients (default: the run's tag)")
    host: str = flag("127.0.0.1", "address to listen at; 0.0.0.0: all, for other machines too")
    port: int = flag(8000, "port; 0: any that is free")
    allowed_hosts: str = flag("", "names that clients may call it by, with commas (default: loopback's, or any)")
    api_key: str = flag("", f"clients must know it; the environment variable {KEY_VARIABLE} is not seen by others")
    max_batch: int = flag(Limits.max_batch, "texts generated together")
    max_queue: int = flag(Limits.max_queue, "requests that may wait; those beyond get 429")
    max_n: int = flag(Limits.max_n, "texts of one request (n)")
    max_tokens: int = flag(Limits.max_tokens, "tokens of a text; 0: what fits into the context")
    max_request_bytes: int = flag(Limits.max_request_bytes, "bytes of a request's body; those beyond get 413")
    max_connections: int = flag(512, "open connections; those beyond get 503")
    request_seconds: float = flag(Limits.request_seconds, "seconds in which a request's body must come")
    stop_seconds: float = flag(30.0, "seconds that running requests get to finish in after SIGTERM or Ctrl-C")
    device: str = flag("auto", "auto, cpu, cuda, cuda:N or mps")
    dtype: str = flag("auto", "auto, float32, bfloat16 or float16")

    @property
    def limits(self) -> Limits:
        """The limits of requests."""
        return Limits(**{field.name: getattr(self, field.name) for field in fields(Limits)})

    @property
    def hosts(self) -> list[str]:
        """The names by which it may be called."""
        names = [name.strip() for name in self.allowed_hosts.split(",") if name.strip()]
        return names or ([*LOOPBACK, "[::1]"] if self.host in LOOPBACK else ["*"])

    def check(self, problems: Problems) -> None:
        """Record every setting that is out of range by itself."""
        for name in ("max_batch", "max_queue", "max_n", "max_request_bytes", "max_connections"):
            value = getattr(self, name)
            problems.check(value >= 1, flag_name(name), value, "an integer of at least 1")
        problems.check(self.max_tokens >= 0, "--max-tokens", self.max_tokens, "an integer of at least 1, or 0")
        problems.check(self.max_n <= self.max_batch, "--max-n", self.max_n, "at most --max-batch")
        problems.check(0 <= self.port < 2**16, "--port", self.port, f"a port, 0 to {2**16 - 1}")
        problems.check(self.step is None or self.step >= 0, "--step", self.step, "an integer of at least 0")
        for name in ("request_seconds", "stop_seconds"):
            value = getattr(self, name)
            problems.check(value > 0, flag_name(name), value, "a number above 0")
        bad = [host for host in self.hosts if "*" in host[1:] or (host.startswith("*") and host[1:2] not in ("", "."))]
        problems.check(not bad, "--allowed-hosts", self.allowed_hosts, "names, *.NAME, or * for any")
