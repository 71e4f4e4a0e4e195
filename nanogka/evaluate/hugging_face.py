"""Any causal language model of the `transformers` library, from a local folder, behind the interface of `GPT`.

    model, tokenizer = load_hugging_face("path/to/gpt2", device, dtype)

Known models have published scores, which is how the evaluator itself can be checked. `transformers` is optional:
`pip install "nanogka[hf]"`.

Shapes: B rows, T positions, V vocabulary.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor, nn

# Configurations' names for the longest sequence, the most specific first.
LENGTH_NAMES = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "seq_length")
DEFAULT_LENGTH = 2048


class HuggingFaceModel(nn.Module):
    """A causal language model with `hidden` and `unembed` as evaluation takes them of `nanogka.model.GPT`.

    `hidden` gives the logits themselves: some architectures change them after the head (caps, scales).
    """

    def __init__(self, model) -> None:
        super().__init__()
        self.model = model
        lengths = (getattr(model.config, name, None) for name in LENGTH_NAMES)
        length = next((n for n in lengths if isinstance(n, int) and n > 0), DEFAULT_LENGTH)
        self.config = SimpleNamespace(sequence_len=length, vocab_size=model.config.vocab_size)
        self.compute_dtype = model.dtype
        self.eval()

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return self.model.device

    def hidden(self, ids: Tensor) -> Tensor:
        """Logits (B, T, V) of ids (B, T), padded on the right."""
        return self.model(input_ids=ids, use_cache=False).logits

    def unembed(self, logits: Tensor) -> Tensor:
        """The logits (…, V), at least float32."""
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (B, T, V) of ids (B, T)."""
        return self.unembed(self.hidden(ids))


class HuggingFaceTokenizer:
    """A tokenizer with `encode_batch` and `bos_id` as `nanogka.tokenizer.Tokenizer` has them.

    A vocabulary without a token that begins a text uses the one that ends it, as GPT-2's does.
    """

    def __init__(self, tokenizer) -> None:
        self.tokenizer = tokenizer
        bos = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
        if bos is None:
            raise ValueError("--hf-path: the tokenizer has neither a first nor a last token of a text")
        self.bos_id = int(bos)

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, no special ones added."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text; `tokenizers` spreads them over the cores."""
        if not texts:
            return []
        return self.tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]


def load_hugging_face(
    folder: str | Path, device: torch.device, dtype: torch.dtype
) -> tuple[HuggingFaceModel, HuggingFaceTokenizer]:
    """The model and tokenizer in a folder, as `save_pretrained` wrote it; nothing is fetched, no code of it is run.

    Raises:
        ValueError: if `transformers` is not installed, or the folder holds no such model.
    """
    folder = Path(folder).expanduser()
    if not (folder / "config.json").is_file():
        raise ValueError(f"--hf-path: got {str(folder)!r}, takes a folder with a config.json")
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise ValueError(f'--hf-path: takes the library transformers: pip install "nanogka[hf]" ({error})') from error
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).to(device=device, dtype=dtype)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"--hf-path: got {str(folder)!r}, which cannot be loaded: {reason}") from error
    return HuggingFaceModel(model), HuggingFaceTokenizer(tokenizer)


def folder_fingerprint(folder: str | Path) -> str:
    """sha256 (hex) over names and contents of the files of a folder."""
    digest = hashlib.sha256()
    for file in sorted(path for path in Path(folder).expanduser().iterdir() if path.is_file()):
        digest.update(file.name.encode() + b"\0")
        with file.open("rb") as opened:
            while block := opened.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
