"""`python -m scripts.export`: what it writes and says, and what it refuses."""

import pytest
from generate_models import byte_tokenizer
from safetensors.torch import load_file

from nanogka.checkpoint import Checkpoint, save_checkpoint
from nanogka.model import GPT, GPTConfig
from nanogka.runs import write_config
from scripts import export


@pytest.fixture
def weights(base):
    """Of the run `tiny`, which has not been trained."""
    tokenizer = byte_tokenizer()
    config = GPTConfig(n_layer=1, n_head=1, n_embd=32, sequence_len=40, vocab_size=tokenizer.vocab_size)
    folder, found = base / "runs" / "tiny", GPT(config).state_dict()
    save_checkpoint(folder / "checkpoints", Checkpoint(7, found, {}, {}))
    tokenizer.save(folder / "tokenizer")
    write_config(folder, {"run": {"kind": "base"}, "settings": {}, "model": config.to_dict()})
    return found


def test_a_run_becomes_a_folder_once(weights, tmp_path, capsys):
    out = tmp_path / "out"
    assert export.main(["--run", "tiny", "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"tiny, step 7: written to {out}\n"
    found = load_file(out / "model.safetensors")
    assert found["model.embedding.weight"].equal(weights["embedding.weight"])
    assert found["lm_head.weight"].equal(weights["lm_head.weight"])
    assert len(found) == len(weights)
    assert export.main(["--run", "tiny", "--out", str(out)]) == 2
    assert "--overwrite replaces an exported one" in capsys.readouterr().err
    assert export.main(["--run", "tiny", "--out", str(out), "--overwrite"]) == 0


def test_all_that_is_wrong_is_said_at_once_and_nothing_is_written(base, tmp_path, capsys):
    flags = ["--run", "nowhere", "--out", str(tmp_path), "--push-to-hub", "a/b/c"]
    (tmp_path / "file").write_text("")
    assert export.main(flags) == 2
    err = capsys.readouterr().err
    assert all(f"export: {flag}: got" in err for flag in flags[::2])
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert export.main([]) == 2
    assert "export: --out: got '', takes a folder to write" in capsys.readouterr().err
