"""Train a vision transformer.

    python -m scripts.vision_train --dataset torch/fashion_mnist --data-dir ~/data --download
    python -m scripts.launch --nproc_per_node=8 -m scripts.vision_train -- --data-dir /data/imagenet --recipe deit
    python -m scripts.vision_train --data-dir /data/imagenet --recipe deit --dry-run       print the plan

Everything goes to NANOGKA_BASE_DIR/vision/<run>: config.yaml, metrics.jsonl, last.pt, and attention maps in maps/.
Needs the extra `vision`. See docs/research/images.md.
"""

import sys

from nanogka.common.cli import command
from nanogka.common.distributed import Ranks
from nanogka.common.errors import Errors
from nanogka.vision.settings import VisionSettings


def body(settings: VisionSettings, errors: Errors) -> None:
    """Plan and train, then draw the attention of the averaged weights on one held-out image."""
    errors.raise_if_any()
    try:
        from nanogka.vision.figures import draw_example
        from nanogka.vision.train import describe_images, plan_images, train_images
    except ImportError as error:
        raise ValueError(f"timm is missing: pip install -e '.[vision]' ({error})") from error
    ranks = Ranks.from_environment()
    run = plan_images(settings, ranks)
    if ranks.is_main:
        print(describe_images(run), flush=True)
    if settings.dry_run:
        return
    model = train_images(run)
    if ranks.is_main:
        drawn = draw_example(model, run.val_set, run.model, run.folder / "maps")
        print(f"done: {run.folder}, {len(drawn)} figures in maps/")


main = command("vision_train", VisionSettings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
