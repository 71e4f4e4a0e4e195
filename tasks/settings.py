"""Every setting of an evaluation, its flag and its help, and the checks that need nothing but the settings."""

from dataclasses import dataclass
from pathlib import Path

from nanogka.cli import flag
from nanogka.problems import Problems
from tasks.selection import BUNDLE_HELP, SHA256_VARIABLE, URL_VARIABLE

PARTS = ("bpb", "tasks", "core", "sample")
# What can be done with a model that is not ours: its tokens' bytes and its cache are its library's own.
HF_PARTS = ("tasks", "core")


@dataclass(frozen=True)
class EvalSettings:
    """What `scripts.base_eval` takes."""

    run: str = flag("", "a run's folder or tag (default: the run trained last)")
    checkpoint: str = flag("", "the folder of one checkpoint of a run, in place of --run")
    hf_path: str = flag("", "the folder of a causal model of the transformers library, in place of --run")
    step: int | None = flag(None, "which checkpoint of the run (default: the newest sound one)")
    eval: str = flag(
        "", f"what to do, of {', '.join(PARTS)}, with commas between (default: bpb,tasks,sample; --hf-path: tasks)"
    )
    data: str = flag("", "corpus of the text (default: the one the run was trained on)")
    eval_bundle: str = flag("auto", BUNDLE_HELP)
    eval_bundle_url: str = flag("", f"where download finds the .zip (default: {URL_VARIABLE}, else nanochat's)")
    eval_bundle_sha256: str = flag("", f"what the .zip must hash to (default: {SHA256_VARIABLE}, else unchecked)")
    tasks: str = flag("", "these tasks only, with commas between")
    max_per_task: int | None = flag(None, "items of each task at most")
    split_tokens: int = flag(262_144, "tokens of each split for bits per byte, about; at most those there are")
    batch_tokens: int | None = flag(None, "tokens of a batch at most, with padding (default: what suits the device)")
    anew: bool = flag(False, "score every item again, also those that an earlier evaluation of the same has scored")
    predictions: str = flag("", "write a line of JSON for each item of each task to this file")
    output: str = flag("", "where to write (default: evaluation.json in the run's folder)")
    device: str = flag("auto", "auto, cpu, cuda, cuda:N or mps")
    dtype: str = flag("auto", "compute dtype: auto, float32, bfloat16 or float16")

    @property
    def parts(self) -> list[str]:
        """What to do."""
        asked = self.eval or ("tasks" if self.hf_path else "bpb,tasks,sample")
        return [part.strip() for part in asked.split(",") if part.strip()]

    def check(self, problems: Problems) -> None:
        """Record every setting that is out of range by itself."""
        takes = HF_PARTS if self.hf_path else PARTS
        known = bool(self.parts) and set(self.parts) <= set(takes)
        problems.check(known, "--eval", self.eval, f"one or more of {', '.join(takes)}, with commas between")
        for name in ("max_per_task", "split_tokens", "batch_tokens"):
            value = getattr(self, name)
            flag_name = "--" + name.replace("_", "-")
            problems.check(value is None or value >= 1, flag_name, value, "an integer of at least 1")
        for name in ("predictions", "output"):
            value = getattr(self, name)
            parent = Path(value).expanduser().parent
            problems.check(not value or parent.is_dir(), f"--{name}", value, "a file in a folder that exists")
        named = {name: getattr(self, name) for name in ("run", "checkpoint", "hf_path") if getattr(self, name)}
        together = " and ".join("--" + name.replace("_", "-") for name in named)
        problems.check(len(named) <= 1, together, tuple(named.values()), "one of them")
