"""Export a trained run to a folder that the transformers library loads.

    python -m scripts.export --run d4-gaussian --out exported/d4-gaussian
    python -m scripts.export --run d4-gaussian-chat --out exported/chat --push-to-hub somebody/d4-gaussian-chat

The folder loads without nanogka installed (docs/export.md has details):

    AutoModelForCausalLM.from_pretrained("exported/d4-gaussian", trust_remote_code=True)
"""

import sys
from dataclasses import dataclass

from nanogka.common.cli import WhichRun, command, flag
from nanogka.common.errors import Errors
from nanogka.common.files import expand_path
from nanogka.common.formatting import one_line


@dataclass(frozen=True)
class Settings(WhichRun):
    """Settings."""

    out: str = flag("", "folder to write")
    overwrite: bool = flag(False, "replace an earlier export in --out; deletes every other file in the folder, too")
    push_to_hub: str = flag("", "owner/name of a Hugging Face repository to upload to; created if missing")
    private: bool = flag(False, "make a newly created repository private")
    own_questions: bool = flag(False, "show a question of your own conversations in README.md; every reader sees it")


def body(settings: Settings, errors: Errors) -> None:
    """Export one run."""
    from nanogka.export import check_folder, check_repository, export_run, push_folder
    from nanogka.runs import load_run
    from tasks.chat_data import questions_to_show

    folder = expand_path(settings.out)
    if errors.require(bool(settings.out), "--out", settings.out, "a folder to write"):
        check_folder(folder, settings.overwrite, errors)
    if settings.push_to_hub:
        check_repository(settings.push_to_hub, errors)
    loaded = errors.capture(lambda: load_run(settings.run, step=settings.step))
    errors.raise_if_any()
    questions, about = questions_to_show(loaded, settings.own_questions, 1)
    if loaded.kind == "chat":
        print(one_line(f"questions in README.md: {about}"))
    written = export_run(loaded, folder, next(iter(questions), "Hello"))
    print(f"{loaded.tag}, step {loaded.step}: written to {written}")
    if settings.push_to_hub:
        print(f"uploaded to {push_folder(folder, settings.push_to_hub, settings.private)}")


main = command("export", Settings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
