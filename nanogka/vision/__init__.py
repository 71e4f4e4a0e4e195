"""Images: DeiT with Gaussian Kernel Attention, on timm. Takes the extra `vision`: timm and scikit-learn.

`attention` is the layer, `models` the names that `timm.create_model` knows once it is imported, `accounting` the
paper's table of costs. `settings`, `data`, `learn` and `run` give `nanogka.train.loop` what it trains; `evaluate`,
`compare`, `maps` and `figures` measure and draw the result.

Shapes: B images, T tokens ([CLS], then the patches by rows), C width, H heads, D = C / H.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from nanogka.problems import Problems
from nanogka.vision.torchvision_operators import declare_operators

declare_operators()


@contextmanager
def needs_timm(problems: Problems) -> Iterator[None]:
    """Around imports that need timm: without it, raises the problems found so far and the command that installs it."""
    try:
        yield
    except ImportError as error:
        problems.lines.append(f'takes timm: pip install "nanogka[vision]" ({error})')
        problems.raise_any()
