"""Open the model to evaluate: one of our runs, or any causal language model of the `transformers` library.

Models of that library have published scores, which check the evaluator. Shapes: B rows, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from nanogka.checkpoint import MANIFEST, WEIGHTS, list_checkpoints, step_of, verify_checkpoint
from nanogka.common.files import base_dir, expand_path, first_line, read_json
from nanogka.common.formatting import one_line
from nanogka.evaluate.loglikelihood import Continue, GPTScorer, Rows, Scorer, padded
from nanogka.runs import LoadedRun, SavedRun, load_run
from nanogka.tokenizer import Tokenizer

DEFAULT_LENGTH = 2048  # context of a model whose configuration names none


@dataclass(frozen=True)
class EvaluatedModel:
    """A model ready to be evaluated: that of a run, or without `run` that of another library."""

    scorer: Scorer
    tokenizer: Tokenizer | HuggingFaceTokenizer
    folder: Path  # receives the results; its name is the model's
    fingerprint: dict  # JSON that differs if the weights or the tokenizer do
    run: LoadedRun | None = None

    @property
    def own(self) -> LoadedRun:
        """The run. Settings do not ask for parts that need it of a model of another library."""
        assert self.run is not None
        return self.run

    @property
    def title(self) -> str:
        """A line for people."""
        head = self.to_json()
        step = "" if self.run is None else f", step {self.run.step}"
        return f"{one_line(self.folder.name)}{step}, on {head['device']} in {head['dtype']}"

    def to_json(self) -> dict:
        """The head of the results."""
        run, dtype = self.run, str(self.scorer.compute_dtype).removeprefix("torch.")
        step, checkpoint = (run.step, run.checkpoint_folder.name) if run else (None, "")
        head = {"run": self.folder.name, "step": step, "checkpoint": checkpoint}
        return head | {"device": str(self.scorer.device), "dtype": dtype}


def open_run(
    run: str, step: int | None, device: torch.device, dtype: torch.dtype, kind: str | None = None
) -> EvaluatedModel:
    """Load a run's checkpoint, as `load_run` does."""
    loaded = load_run(run or None, device, step, dtype, kind)
    weights = read_json(loaded.checkpoint_folder / MANIFEST)["files"][WEIGHTS]["sha256"]
    fingerprint = {"weights": weights, "tokenizer": loaded.tokenizer.fingerprint}
    return EvaluatedModel(GPTScorer(loaded.model), loaded.tokenizer, loaded.folder, fingerprint, loaded)


def damaged_checkpoints(run: SavedRun) -> list[str]:
    """A note on each damaged checkpoint that is newer than the one which was loaded."""
    newer = [path for path in list_checkpoints(run.folder / "checkpoints") if step_of(path) > run.step]
    taken = run.checkpoint_folder.name
    reasons = [(path.name, verify_checkpoint(path)) for path in newer]
    return [f"{name} is damaged ({reason}): {taken} is evaluated instead" for name, reason in reasons]


def open_hugging_face(path: str, device: torch.device, dtype: torch.dtype) -> EvaluatedModel:
    """Load a model and tokenizer that `save_pretrained` wrote. Fetches nothing and runs no code of the folder."""
    folder = expand_path(path)
    if not (folder / "config.json").is_file():
        raise ValueError(f"hf_path: got {str(folder)!r}, expected a folder with a config.json")
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise ValueError(f"hf_path: needs the library transformers: pip install -e '.[hf]' ({error})") from error
    try:
        options = {"local_files_only": True, "trust_remote_code": False}  # explicit, or newer versions would ask
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **options).to(device)
        tokenizer = AutoTokenizer.from_pretrained(folder, **options)
    except Exception as error:  # the errors of the library have no common type
        raise ValueError(f"hf_path: got {str(folder)!r}, which cannot be loaded: {first_line(error)}") from error
    name = folder.resolve().name
    # Size and time identify a file without reading gigabytes.
    files = [(path, path.stat()) for path in folder.iterdir() if path.is_file()]
    fingerprint = {"files": [(path.name, stat.st_size, stat.st_mtime_ns) for path, stat in sorted(files)]}
    output = base_dir() / "evaluations" / name
    return EvaluatedModel(HuggingFaceModel(model), HuggingFaceTokenizer(tokenizer), output, fingerprint)


class HuggingFaceModel(nn.Module):
    """A `Scorer` of a causal language model.

    Its states are the logits, because some architectures change them after the head (caps, scales). It has no cache
    that we know how to share, and its context is a limit: many models cannot read more.
    """

    shares_prefixes = False

    def __init__(self, model) -> None:
        super().__init__()
        self.model = model
        self.context_limit = getattr(model.config, "max_position_embeddings", None) or DEFAULT_LENGTH
        self.vocab_size = model.config.vocab_size
        self.compute_dtype = model.dtype
        self.eval()

    @property
    def device(self) -> torch.device:
        return self.model.device

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (B, T, V) of ids (B, T), padded on the right."""
        return self.model(input_ids=ids, use_cache=False).logits

    def states(self, rows: Rows) -> Tensor:
        """The logits (B, T, V) of rows of ids."""
        return self(padded(rows, 0, self.device))

    def logits(self, states: Tensor) -> Tensor:
        """The logits, at least float32."""
        return states.to(torch.promote_types(states.dtype, torch.float32))

    def after_prefixes(self, prefixes: Rows, longest: int) -> Continue:
        """Never called, see `shares_prefixes`."""
        raise NotImplementedError("prefixes of a model of another library are not shared")


class HuggingFaceTokenizer:
    """A tokenizer with `encode_batch` and `bos_id`, as ours."""

    def __init__(self, tokenizer) -> None:
        self.tokenizer = tokenizer
        # Models such as GPT-2 were trained on texts joined by one token, so the token that ends a text also begins one.
        bos = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
        if bos is None:
            raise ValueError("hf_path: got a tokenizer with neither bos_token_id nor eos_token_id, expected one")
        self.bos_id = int(bos)

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, no special ones added."""
        return self.tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
