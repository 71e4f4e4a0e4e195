"""What the operator tells the compiler, without importing it: that alone takes as long as importing torch."""

from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable)


def constant_in_graphs(function: F) -> F:
    """`torch.compiler.assume_constant_result`: not traced, a graph holds the answer of the call.

    That one imports the whole compiler where it decorates, two seconds of every process that will never compile.
    """
    function._dynamo_marked_constant = True
    return function
