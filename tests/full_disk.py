"""A disk that takes no more, in a test: the system refuses to let any file grow beyond a size."""

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Writing beyond `size` bytes of a file fails, with an `OSError` that names no file."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # an import would leave a cut file to all programs
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        sys.dont_write_bytecode = before
