"""Draw where the heads of a trained vision transformer look, over the pictures themselves. See docs/vision.md.

    python -m scripts.vision_maps                                    the run trained last, its first held-out image
    python -m scripts.vision_maps --run digits-deit_micro_gka_patch2_8 --number 7
    python -m scripts.vision_maps --run imagenet-deit_tiny_gka_patch16_224 --image photo.jpg

Writes figures to `maps/` in the run's folder and the run's report anew. Takes the extra `vision`.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from nanogka.cli import flag, run
from nanogka.problems import Problems


@dataclass(frozen=True)
class Settings:
    """The flags."""

    run: str = flag("", "a run's folder or name (default: the run trained last)")
    number: int = flag(0, "which of the held-out images")
    image: str = flag("", "a file, in place of a held-out image")
    output: str = flag("", "the folder to write (default: maps/ in the run's)")


def body(settings: Settings, problems: Problems) -> None:
    """Draw the figures of one image."""
    problems.check(settings.number >= 0, "--number", settings.number, "an integer of at least 0")
    try:
        from nanogka.vision.run import load_image_run
        from nanogka.vision.view import illustrate
    except ImportError as error:
        problems.lines.append(f'takes timm: pip install "nanogka[vision]" ({error})')
        problems.raise_any()
    trained = problems.attempt(lambda: load_image_run(settings.run))
    problems.raise_any()
    folder = Path(settings.output).expanduser() if settings.output else None
    for path in illustrate(trained, settings.number, settings.image, folder):
        print(path)


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    return run(Settings, body, "vision_maps", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
