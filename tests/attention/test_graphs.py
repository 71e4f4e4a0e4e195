"""The mark that keeps the compiler's import away from those who do not compile."""

import torch

from nanogka.attention.graphs import constant_in_graphs


def test_the_mark_is_the_compilers_own():
    def ours():
        return 1

    def theirs():
        return 1

    assert constant_in_graphs(ours) is ours
    assert vars(ours) == vars(torch.compiler.assume_constant_result(theirs)) != {}
