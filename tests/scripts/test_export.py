"""`python -m scripts.export`: what it writes and says, and what it refuses."""

import pytest
from generate_models import save_run, small_model
from safetensors.torch import load_file

from scripts import export


@pytest.fixture
def weights(base):
    """Of the run `tiny`, which has not been trained."""
    save_run(base / "runs" / "tiny", model := small_model(sequence_len=40))
    return model.state_dict()


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


def test_weights_with_nan_are_not_exported_and_the_run_is_named(base, tmp_path, capsys):
    model = small_model(sequence_len=40)
    model.lm_head.weight.data[3, 4] = float("nan")
    save_run(base / "runs" / "broken", model)
    assert export.main(["--run", "broken", "--out", str(tmp_path / "out")]) == 2
    assert "broken" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
