"""Write a trained run as a folder that the transformers library reads, completely or not at all."""

import json
import os
import shutil
from contextlib import suppress
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from nanogka.common.errors import Errors
from nanogka.common.files import annotate_oserror, expand_path, remove_leftovers
from nanogka.data.conversation import ChatFormat
from nanogka.export.card import model_card
from nanogka.export.config import network_config, network_weights
from nanogka.export.tokenizer import (
    END,
    PAD,
    TOKENIZER,
    TOKENIZER_CONFIG,
    exported_tokenizer,
    reply_ends,
    tokenizer_config,
)
from nanogka.runs import LoadedRun
from nanogka.tokenizer import BOS

CODE = ("configuration_nanogka.py", "attention_nanogka.py", "mixers_nanogka.py", "modeling_nanogka.py")
CLASSES = {
    "AutoConfig": "configuration_nanogka.NanogkaConfig",
    "AutoModel": "modeling_nanogka.NanogkaModel",
    "AutoModelForCausalLM": "modeling_nanogka.NanogkaForCausalLM",
    "AutoModelForSequenceClassification": "modeling_nanogka.NanogkaForSequenceClassification",
}


def check_folder(folder: Path, overwrite: bool, errors: Errors) -> None:
    """Record a folder that must not be written."""
    taken = folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))
    expected = "a folder that is empty or does not exist yet; --overwrite replaces an exported one"
    replaced = overwrite and (folder / "config.json").is_file()
    errors.require(not taken or replaced, "out", str(folder), expected)


def export_run(run: LoadedRun, folder: Path, question: str = "Hello") -> Path:
    """Write `folder`, replacing what it holds, and return it. The card of a chat model asks `question`.

    Raises ValueError if a layer has no exported form, and OSError with the folder's name if the disk is full.
    """
    ChatFormat(run.tokenizer)  # raises ValueError if the template's tokens are missing
    weights = {name: value.detach().cpu().contiguous() for name, value in network_weights(run.model).items()}
    documents = _documents(run, question)
    folder = expand_path(folder).absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Complete or not at all: the files are written to a folder next to it, which then takes its name.
    temporary = TemporaryDirectory(prefix=f".{folder.name}.", suffix=".partial", dir=folder.parent)
    try:
        with annotate_oserror(folder), temporary as name:
            new = Path(name, "new")
            new.mkdir()
            _write_files(new, documents, weights)
            _replace(folder, new)
    except SafetensorError as error:  # the library's own error for a full disk
        raise OSError(f"{folder}: {error}") from error
    remove_leftovers(folder)
    return folder


def _replace(folder: Path, new: Path) -> None:
    """Give `new` the name `folder`. If this is interrupted, the earlier folder gets its name back."""
    old = folder.with_name(f".{folder.name}.{os.getpid()}.old")  # not in the temporary folder, which is deleted
    try:
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
    except BaseException:
        if old.exists() and not folder.exists():
            old.rename(folder)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _write_files(folder: Path, documents: dict[str, str | dict], weights: dict[str, Tensor]) -> None:
    for name, content in documents.items():
        text = content if isinstance(content, str) else json.dumps(content, indent=1) + "\n"
        (folder / name).write_text(text, encoding="utf-8")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with suppress(OSError):  # not every file system has modes; the library writes this file with mode 0600
        shutil.copymode(folder / "config.json", folder / "model.safetensors")


def _documents(run: LoadedRun, question: str) -> dict[str, str | dict]:
    """The content of every file except the weights."""
    special, replies = run.tokenizer.special_tokens, run.kind == "chat"
    end = END if replies else BOS
    # A text ends where the next document begins.
    ends = [special[name] for name in (reply_ends(special) if replies else [end])]
    ids = {"bos_token_id": special[BOS], "eos_token_id": ends, "pad_token_id": special[PAD]}
    config = {"model_type": "nanogka", "architectures": ["NanogkaForCausalLM"], "auto_map": CLASSES, "dtype": "float32"}
    # In bfloat16 the soft cap would round the logits to two or three digits. vLLM computes them in this dtype.
    config["head_dtype"] = "float32"
    code = resources.files("nanogka.export") / "remote_code"
    return {
        "config.json": config | network_config(run.model) | ids | {"eos_token_id": special[end]},
        "generation_config.json": ids,
        TOKENIZER: exported_tokenizer(run.tokenizer).to_str(),
        TOKENIZER_CONFIG: tokenizer_config(run.model.config.sequence_len, end),
        "README.md": model_card(run, question),
        **{name: (code / name).read_text(encoding="utf-8") for name in CODE},
    }
