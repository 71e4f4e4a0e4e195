"""Settings of the evaluations of base and of chat models."""

from collections.abc import Sequence
from dataclasses import dataclass

from nanogka.common.cli import DeviceSettings, flag, flag_name, json_flag
from nanogka.common.errors import Errors
from nanogka.common.files import expand_path

PARTS = ("bpb", "tasks", "core", "sample")
# Models of another library: we know neither the bytes of their tokens nor their cache.
HF_PARTS = ("tasks", "core")
OUTPUT = "chat_evaluation.json"
ALL_SKILLS, NEW_WORDINGS = "skills", "reworded"
SKILL_ITEMS = 150
URL_VARIABLE = "NANOGKA_EVAL_BUNDLE_URL"
BUNDLE_HELP = (
    f"evaluation bundle: a folder or .zip in nanochat's layout; download (nanochat's, or the .zip at {URL_VARIABLE}); "
    "auto (an earlier download, if there is one); none"
)


@dataclass(frozen=True)
class Computing(DeviceSettings):
    """Checkpoint."""

    step: int | None = flag(None, "step of the checkpoint to load (default: the run's latest valid one)")
    batch_tokens: int | None = flag(
        None, "maximum tokens per batch, including padding (default: chosen for the device)", ge=1
    )
    json: bool = json_flag()


@dataclass(frozen=True)
class EvalSettings(Computing):
    """Settings."""

    run: str = flag("", "folder or tag of the run to evaluate (default: the latest run)")
    hf_path: str = flag("", "folder of a causal model of the transformers library, to evaluate instead of a run")
    eval: str = flag(
        "", f"comma-separated parts: {', '.join(PARTS)} (default: bpb,tasks,sample; with --hf-path: tasks)"
    )
    data: str = flag("", "text for bits per byte and the tasks made from it (default: the run's training data)")
    eval_bundle: str = flag("auto", BUNDLE_HELP)
    tasks: str = flag("", "comma-separated tasks to run (default: all)")
    max_per_task: int | None = flag(None, "maximum items per task (default: all)", ge=1)
    split_tokens: int = flag(262_144, "tokens of each split to measure bits per byte on, rounded up to batches", ge=1)
    cache: bool = flag(True, "reuse what an earlier evaluation of the same model left in --output")
    predictions: str = flag("", "file to write one line of JSON per item to; scores are then not reused")
    output: str = flag("", "file for the results (default: evaluation.json in the run's folder)")

    @property
    def parts(self) -> list[str]:
        """The parts to do."""
        return split_names(self.eval or ("tasks" if self.hf_path else "bpb,tasks,sample"))

    def check(self, errors: Errors) -> None:
        """Record invalid settings."""
        possible = HF_PARTS if self.hf_path else PARTS
        known = bool(self.parts) and set(self.parts) <= set(possible)
        errors.require(known, "eval", self.eval, f"comma-separated parts of {', '.join(possible)}")
        check_writable(self, ("predictions", "output"), errors)
        both = bool(self.run and self.hf_path)
        errors.require(not both, "--run and --hf-path", (self.run, self.hf_path), "one of them")


@dataclass(frozen=True)
class ChatEvalSettings(Computing):
    """Settings."""

    run: str = flag("", "folder or tag of the run to evaluate (default: the latest chat run)")
    tasks: str = flag(
        "",
        f"comma-separated tasks to run; {ALL_SKILLS}: those made by code; {NEW_WORDINGS}: the same questions in the "
        f"wordings that --data embedded-known leaves out (default: all but {NEW_WORDINGS})",
    )
    run_code: bool = flag(False, "run programs that the model writes, in a subprocess with limits: HumanEval needs it")
    max_per_task: int | None = flag(
        None, f"maximum items per task (default: {SKILL_ITEMS} of each skill, all of the others)", ge=1
    )
    cache: bool = flag(True, "exit if --output already has finished results for this model and these questions")
    eval_bundle: str = flag("auto", f"{BUNDLE_HELP}; hub (the Hugging Face hub); hub:FOLDER (local copies of its data)")
    output: str = flag("", f"file for the results (default: {OUTPUT} in the run's folder)")


def split_names(text: str) -> list[str]:
    """The comma-separated names in `text`."""
    return [name.strip() for name in text.split(",") if name.strip()]


def check_writable(settings: object, names: Sequence[str], errors: Errors) -> None:
    """Record each of these settings that names a file in a folder that does not exist."""
    for name in names:
        value = getattr(settings, name)
        exists = not value or expand_path(value).parent.is_dir()
        errors.require(exists, flag_name(name), value, "a file in a folder that exists")
