"""Open the model to evaluate: one of our runs, or any causal language model of the `transformers` library.

Models of that library have published scores, which check the evaluator. Shapes: B rows, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from nanogka.checkpoint import MANIFEST, STATE, WEIGHTS, list_checkpoints, step_of, verify_checkpoint
from nanogka.common.files import base_dir, expand_path, first_line, read_json
from nanogka.common.formatting import one_line
from nanogka.evaluate.loglikelihood import Continue, GPTScorer, Rows, Scorer, padded
from nanogka.evaluate.text import Reading
from nanogka.model import GPT
from nanogka.runs import LoadedRun, load_run, read_config
from nanogka.tokenizer import Tokenizer

DEFAULT_LENGTH = 2048  # context of a model whose configuration names none


@dataclass
class EvaluatedModel:
    """A model ready to be evaluated."""

    model: GPT | HuggingFaceModel
    scorer: Scorer  # the model behind the interface of scoring
    tokenizer: Tokenizer | HuggingFaceTokenizer
    name: str
    folder: Path  # receives the results
    fingerprint: dict  # JSON that differs if the weights or the tokenizer do
    step: int | None = None
    checkpoint: str = ""
    data: str = ""  # the corpus it was trained on, and its parquet footers; empty if unknown
    footers: str = ""
    packing: str = "bestfit"  # how documents fill the rows of validation text: as in training
    shards: int | None = None  # of a corpus of the hub
    reading: Reading | None = None  # the text that the run has read, if that is known
    notes: list[str] = field(default_factory=list)

    @property
    def gpt(self) -> GPT:
        """The model of a run. Settings do not ask for parts that need it of a model of another library."""
        assert isinstance(self.model, GPT)
        return self.model

    @property
    def own_tokenizer(self) -> Tokenizer:
        """The tokenizer of a run."""
        assert isinstance(self.tokenizer, Tokenizer)
        return self.tokenizer

    @property
    def title(self) -> str:
        head = self.to_json()
        step = "" if self.step is None else f", step {self.step}"
        return f"{one_line(self.name)}{step}, on {head['device']} in {head['dtype']}"

    def to_json(self) -> dict:
        """The head of the results."""
        dtype = str(self.model.compute_dtype).removeprefix("torch.")
        head = {"run": self.name, "step": self.step, "checkpoint": self.checkpoint}
        return head | {"device": str(self.model.device), "dtype": dtype}


def open_run(
    run: str, step: int | None, device: torch.device, dtype: torch.dtype, kind: str | None = None
) -> EvaluatedModel:
    """Load a run's checkpoint, as `load_run` does. Without `step`, `notes` name newer checkpoints that are damaged."""
    loaded = load_run(run or None, device, step, dtype, kind)
    files = read_json(loaded.checkpoint_folder / MANIFEST)["files"]
    # A chat model was trained on conversations. Its bits per byte are measured on the text of its base model.
    settings = loaded.part("run").get("base") if loaded.kind == "chat" else loaded.part("settings")
    reading = _find_reading(loaded.checkpoint_folder, loaded.config)
    return EvaluatedModel(
        loaded.model,
        GPTScorer(loaded.model),
        loaded.tokenizer,
        name=loaded.folder.name,
        folder=loaded.folder,
        fingerprint={"weights": files[WEIGHTS]["sha256"], "tokenizer": loaded.tokenizer.fingerprint},
        step=loaded.step,
        checkpoint=loaded.checkpoint_folder.name,
        data=str(settings.get("data", "")) if isinstance(settings, dict) else "",
        footers=loaded.config.get("run", {}).get("footers", ""),
        packing=reading.settings.packing if reading else loaded.part("settings").get("packing") or "bestfit",
        shards=loaded.part("settings").get("shards"),
        reading=reading,
        notes=[] if step is not None else _damaged_checkpoints(loaded),
    )


def _find_reading(checkpoint: Path, config: dict) -> Reading | None:
    """The text that a run or, for a chat model, its base run has read up to a checkpoint; None if that is unknown."""
    run = config.get("run") or {}
    try:
        if run.get("kind") == "chat":
            folder = checkpoint.resolve().parents[2] / str(run["base"]["run"])
            base = folder / "checkpoints" / f"step_{run['base']['step']:06d}"
            return _find_reading(base, read_config(folder))
        return Reading.from_state(read_json(checkpoint / STATE).get("loader"))
    except (KeyError, TypeError, ValueError, OSError):  # the base run is gone or damaged
        return None


def _damaged_checkpoints(run: LoadedRun) -> list[str]:
    newer = [path for path in list_checkpoints(run.folder / "checkpoints") if step_of(path) > run.step]
    taken = run.checkpoint_folder.name
    return [f"{path.name} is damaged ({verify_checkpoint(path)}): {taken} is evaluated instead" for path in newer]


def open_hugging_face(path: str, device: torch.device, dtype: torch.dtype) -> EvaluatedModel:
    """Load a model and tokenizer that `save_pretrained` wrote. Fetches nothing and runs no code of the folder."""
    folder = expand_path(path)
    if not (folder / "config.json").is_file():
        raise ValueError(f"hf_path: got {str(folder)!r}, expected a folder with a config.json")
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise ValueError(f'hf_path: needs the library transformers: pip install "nanogka[hf]" ({error})') from error
    try:
        options = {"local_files_only": True, "trust_remote_code": False}  # explicit, or newer versions would ask
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **options).to(device)
        tokenizer = AutoTokenizer.from_pretrained(folder, **options)
    except Exception as error:  # the errors of the library have no common type
        raise ValueError(f"hf_path: got {str(folder)!r}, which cannot be loaded: {first_line(error)}") from error
    name = folder.resolve().name
    # Size and time identify a file without reading gigabytes.
    files = [(path, path.stat()) for path in folder.iterdir() if path.is_file()]
    wrapped = HuggingFaceModel(model)
    return EvaluatedModel(
        wrapped,
        wrapped,
        HuggingFaceTokenizer(tokenizer),
        name=name,
        folder=base_dir() / "evaluations" / name,
        fingerprint={"files": [(path.name, stat.st_size, stat.st_mtime_ns) for path, stat in sorted(files)]},
    )


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
