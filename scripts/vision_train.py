"""Train a vision transformer. See docs/research/images.md.

    python -m scripts.vision_train                                   scikit-learn's digits, a few minutes
    python -m scripts.vision_train --data fashion-mnist --model deit_micro_vlt_patch2_8
    torchrun --standalone --nproc_per_node=8 -m scripts.vision_train -- --data /data/imagenet --workers 12
    python -m scripts.vision_train --data /data/imagenet --dry-run   only print what the run would be and cost

Everything goes to NANOGKA_BASE_DIR/vision/<run>: config.yaml, metrics.jsonl, checkpoints, the report. `--resume auto`
continues a run that was stopped, with the same losses as if it had not been. Takes the extra `vision`.
"""

import sys
from contextlib import suppress

from nanogka.common.cli import command
from nanogka.common.distributed import Ranks
from nanogka.common.errors import Errors
from nanogka.vision import needs_timm
from nanogka.vision.settings import VisionSettings


def body(settings: VisionSettings, errors: Errors) -> int:
    """Prepare and train; returns the exit code."""
    with needs_timm(errors):
        from nanogka.vision.maps import illustrate
        from nanogka.vision.report import write_image_report
        from nanogka.vision.run import describe_images, load_image_run, plan_images, train_images
    ranks = Ranks.from_environment()
    run = plan_images(settings, ranks, errors)
    if ranks.is_main:
        print(describe_images(run), flush=True)
    if settings.dry_run:
        return 0
    code = train_images(run)
    if ranks.is_main and code == 0:
        report = write_image_report(run.folder)
        with suppress(ValueError):  # of a model whose tokens are no square of patches, or an image that is damaged
            illustrate(load_image_run(str(run.folder)))
        print(f"report: {report}")
    return code


main = command("vision_train", VisionSettings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
