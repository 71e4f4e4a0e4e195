"""Write a trained run as a folder of the transformers library. See docs/export.md.

python -m scripts.export --run d4-gaussian --out exported/d4-gaussian
python -m scripts.export --run d4-gaussian-chat --out exported/chat --push-to-hub somebody/d4-gaussian-chat

AutoModelForCausalLM.from_pretrained("exported/d4-gaussian", trust_remote_code=True)     # without nanogka
"""

import sys
from dataclasses import dataclass

from nanogka.common.cli import command, flag
from nanogka.common.errors import Errors
from nanogka.common.files import expand_path


@dataclass(frozen=True)
class Settings:
    """Settings."""

    run: str = flag("", "a run's folder or tag (default: the most recent run)")
    step: int | None = flag(None, "which checkpoint of the run (default: the latest valid one)")
    out: str = flag("", "folder for the exported model")
    overwrite: bool = flag(False, "replace the exported folder in --out")
    push_to_hub: str = flag("", "upload to this repository of the Hugging Face hub, created if missing: somebody/name")
    private: bool = flag(False, "create that repository as private")


def body(settings: Settings, errors: Errors) -> None:
    """Export one run."""
    from nanogka.export import check_folder, check_repository, export_run, push_folder
    from nanogka.runs import load_run

    folder = expand_path(settings.out)
    if errors.require(bool(settings.out), "--out", settings.out, "a folder to write"):
        check_folder(folder, settings.overwrite, errors)
    if settings.push_to_hub:
        check_repository(settings.push_to_hub, errors)
    loaded = errors.capture(lambda: load_run(settings.run or None, step=settings.step))
    errors.raise_if_any()
    print(f"{loaded.tag}, step {loaded.step}: written to {export_run(loaded, folder)}")
    if settings.push_to_hub:
        print(f"uploaded to {push_folder(folder, settings.push_to_hub, settings.private)}")


main = command("export", Settings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
