"""An exported folder: what is in it, how it comes to be, and that transformers reads it."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from exported import STEP, make_calling_run, make_run
from full_disk import full_disk

from nanogka.common.errors import Errors
from nanogka.data.conversation import ChatFormat, Conversation
from nanogka.evaluate.models import open_hugging_face
from nanogka.export import check_folder, export_run, folder, register_with_transformers
from nanogka.generate.engine import Engine
from nanogka.generate.prompt import prompt_of
from nanogka.generate.settings import SamplingParams

FILES = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
FILES |= {"README.md", *(f"{name}_nanogka.py" for name in ("configuration", "attention", "mixers", "modeling"))}


def test_a_folder_is_complete_or_unchanged(tmp_path):
    run, out = make_run(tmp_path / "run"), tmp_path / "exported" / "model"
    assert {path.name for path in export_run(run, out).iterdir()} == FILES
    assert len({path.stat().st_mode for path in out.iterdir()}) == 1  # as the umask has it
    before = (out / "README.md").stat().st_mtime_ns
    for size in (100, 20_000):  # the disk is full at the first file, or at the weights
        with full_disk(size), pytest.raises(OSError, match=str(out)):
            export_run(run, out)
    assert (out / "README.md").stat().st_mtime_ns == before
    export_run(run, out)
    assert (out / "README.md").stat().st_mtime_ns > before
    assert list(out.parent.iterdir()) == [out]


class Interruption:
    """Raises SystemExit, as SIGTERM does, before the n-th operation of Python on files under a folder."""

    def __init__(self, folder):
        self.folder, self.left = str(folder), 0  # 0: never
        sys.addaudithook(self)  # which cannot be removed

    def __call__(self, event, arguments):
        if not (self.left and event.startswith(("open", "os.", "shutil.", "tempfile."))):
            return
        if any(self.folder in os.fsdecode(a) for a in arguments if isinstance(a, str | bytes | os.PathLike)):
            self.left -= 1
            if not self.left:
                raise SystemExit(143)


def test_an_interrupted_replacement_leaves_the_old_or_the_new_export(tmp_path):
    run, out = make_run(tmp_path / "run"), tmp_path / "exports" / "model"
    export_run(run, out)
    interruption, ends = Interruption(out.parent), []
    for number in range(1, 200):
        (out / "README.md").write_text("the old one")
        interruption.left = number
        try:
            export_run(run, out)
        except SystemExit:
            assert {path.name for path in out.iterdir()} == FILES, number
            ends.append((out / "README.md").read_text() == "the old one")
        else:
            break
        finally:
            interruption.left = 0
    assert len(ends) > 20
    assert ends[0]
    assert not ends[-1]
    export_run(run, out)
    assert [path.name for path in out.parent.iterdir() if path.suffix == ".old"] == []


@pytest.mark.parametrize("kind", ["base", "chat"])
def test_the_configuration_tells_other_programs_windows_ends_and_the_dtype_of_the_head(tmp_path, kind):
    run = make_run(tmp_path / "run", kind)
    out = export_run(run, tmp_path / "out")
    config = json.loads((out / "config.json").read_text())
    assert config["head_dtype"] == "float32"
    pytest.importorskip("transformers")
    from nanogka.export.remote_code.configuration_nanogka import NanogkaConfig

    loaded = NanogkaConfig(**config)
    assert loaded.layer_types == ["sliding_attention", "sliding_attention", "full_attention"]
    assert loaded.sliding_window == 32 + 1  # half of the context, and the position itself
    special = run.tokenizer.special_tokens
    ends = json.loads((out / "generation_config.json").read_text())["eos_token_id"]
    expected = [i for name, i in special.items() if name != "<|python_start|>"]
    assert sorted(ends) == sorted(expected if kind == "chat" else [special["<|bos|>"]])
    assert ends[0] == config["eos_token_id"] == special["<|assistant_end|>" if kind == "chat" else "<|bos|>"]


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "mine").write_text("")
    for overwrite in (False, True):
        errors = Errors()
        check_folder(tmp_path, overwrite, errors)
        assert errors.lines[0].startswith(f"out: got {str(tmp_path)!r}")
    (tmp_path / "config.json").write_text("{}")
    check_folder(tmp_path, True, errors := Errors())
    check_folder(tmp_path / "new", False, errors)
    assert errors.lines == []


def test_the_card_tells_data_budget_scores_and_bandwidths(tmp_path):
    task = {"name": "copa", "accuracy": 0.625, "chance": 0.5, "items": 100}
    evaluation = {"step": STEP, "bpb": {"train": 1.5, "val": 1.75}, "tasks": [task]}
    run = make_run(tmp_path / "d3-tiny", evaluation=evaluation, pattern="G", bandwidth_init=2.5)
    card = (export_run(run, tmp_path / "out") / "README.md").read_text()
    for line in (
        "license: mit", "library_name: transformers", "# d3-tiny", "| training data | `fineweb-edu` |",
        "| tokens | 7,000 |", "| training FLOPs | 1.4000e10 |", "| time | 3m30s |", "| seed | 3 |",
        "| bits / byte, val | 1.7500 | — | — |", "| copa | 0.6250 | 0.5000 | 100 |", "| 2 | 2.500, 2.500 |",
    ):  # fmt: skip
        assert line in card.splitlines()
    run = replace(run, step=STEP + 1)
    assert "`python -m scripts.base_eval --run d3-tiny`" in folder.model_card(run)


# ---- with transformers ----


@pytest.fixture(scope="module")
def transformers(tmp_path_factory):
    """The library, its copies of folders' code in a folder of the tests."""
    library = pytest.importorskip("transformers")
    with pytest.MonkeyPatch.context() as monkeypatch:
        modules = str(tmp_path_factory.mktemp("modules"))
        monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", modules)
        auto = "transformers.models.auto"
        for mapping in ("configuration_auto.CONFIG_MAPPING", "modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING"):
            monkeypatch.setattr(f"{auto}.{mapping}._extra_content", {})  # what an evaluation may have registered
        yield library


@pytest.mark.parametrize("kind", ["base", "chat"])
def test_transformers_generates_our_reply_from_a_folder(transformers, tmp_path, kind):
    run = make_run(tmp_path / "run", kind)
    out = export_run(run, tmp_path / kind)
    model = transformers.AutoModelForCausalLM.from_pretrained(out, trust_remote_code=True)
    assert type(model).__module__.startswith("transformers_modules.")
    tokenizer = transformers.AutoTokenizer.from_pretrained(out, trust_remote_code=True)
    engine, text = Engine(run.model, run.tokenizer), "Who <|bos|> are you?"
    prompt, stops = engine.encode("The river"), None
    if kind == "chat":
        prompt, stops = prompt_of(run.tokenizer, Conversation.of(text)).ids, ChatFormat(run.tokenizer).stop_ids
    steps = engine.stream([prompt], SamplingParams(temperature=0), max_tokens=9, stop_tokens=stops)
    expected = [output.token for (output,) in steps]
    generate = transformers.pipeline("text-generation", model=model, tokenizer=tokenizer)
    given = "The river" if kind == "base" else [{"role": "user", "content": text}]
    (found,) = generate(given, max_new_tokens=9, do_sample=False, return_tensors=True)
    assert found["generated_token_ids"] == [*prompt, *expected]


def test_pipelines_return_no_special_tokens_and_the_loop_of_the_card_calculates(transformers, tmp_path):
    """README's question, with a model that calls."""
    out = export_run(make_calling_run(tmp_path / "run"), tmp_path / "out")
    model = transformers.AutoModelForCausalLM.from_pretrained(out, trust_remote_code=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out, trust_remote_code=True)
    generate = transformers.pipeline("text-generation", model=model, tokenizer=tokenizer, do_sample=False)
    question = [{"role": "user", "content": "How do you spell kif?"}]
    reply, begun = {"role": "assistant", "content": "k i f"}, {"role": "assistant", "content": "k i"}
    rendered = tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
    for given, options, expected in (
        (question, {}, [*question, reply]),
        ([*question, begun], {}, [*question, reply]),  # a reply that is continued
        (question, {"return_full_text": False}, "k i f"),
        (rendered, {"return_full_text": False, "add_special_tokens": False}, "k i f"),  # a text, which ends, too
        (rendered, {"add_special_tokens": False}, rendered + "k i f"),
    ):
        assert generate(given, max_new_tokens=20, **options) == [{"generated_text": expected}]
    code = (out / "README.md").read_text().split("```python")[1].split("```")[0]
    exec(code, variables := {"generate": generate})
    user, call, result, answer = variables["messages"]
    assert user == {"role": "user", "content": "What is 2 + 4 + 3?"}
    assert call["tool_calls"][0]["function"] == {"name": "calculator", "arguments": {"expression": "2 + 4 + 3"}}
    assert result == {"role": "tool", "content": "9"}
    assert answer == {"role": "assistant", "content": "9"}


def test_a_model_of_bfloat16_rounds_matrices_and_tables_alone_and_stays_so_when_it_is_saved(transformers, tmp_path):
    out = export_run(make_run(tmp_path / "run"), tmp_path / "out")
    for place, options in ((out, {"dtype": torch.bfloat16}), (tmp_path / "saved", {"dtype": "auto"})):
        model = transformers.AutoModelForCausalLM.from_pretrained(place, trust_remote_code=True, **options)
        built = transformers.AutoModelForCausalLM.from_config(
            model.config, dtype=torch.bfloat16, trust_remote_code=True
        )
        assert {name: p.dtype for name, p in built.named_parameters()} == {
            name: p.dtype for name, p in model.named_parameters()
        }
        assert model.dtype == model.model.dtype == torch.bfloat16
        assert all((p.dtype == torch.bfloat16) == name.endswith(".weight") for name, p in model.named_parameters())
        model.save_pretrained(tmp_path / "saved")


def test_a_classifier_reads_the_last_token_that_is_not_padding(transformers, tmp_path):
    out = export_run(make_run(tmp_path / "run"), tmp_path / "out")
    classes = transformers.AutoModelForSequenceClassification
    model = classes.from_pretrained(out, num_labels=3, trust_remote_code=True).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    texts = ["The river", "The river and the sea"]
    with torch.no_grad():
        together = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits
        ids = [tokenizer(text, return_tensors="pt")["input_ids"] for text in texts]
        expected = torch.stack([model.score(model.model(row).last_hidden_state[0, -1]) for row in ids])
    torch.testing.assert_close(together, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_recipe_of_fine_tuning_learns_every_token_but_the_first(transformers, tmp_path, side):
    """Padding is not scored. Its token neither ends a text nor occurs in one. Trainer divides by the same labels."""
    out = export_run(make_run(tmp_path / "run"), tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(out, padding_side=side)
    texts = [f"The river{tokenizer.eos_token}", f"The river and the sea{tokenizer.eos_token}"]
    recipe = Path("docs/export.md").read_text().split("## Fine-tune")[1].split("```python")[1]
    rows = next(line for line in recipe.splitlines() if line.startswith("rows = "))
    exec(rows, names := {"tokenizer": tokenizer, "texts": texts})
    batch = transformers.DataCollatorForSeq2Seq(tokenizer)(names["rows"], return_tensors="pt")
    for row, text in enumerate(texts):
        ids = tokenizer(text)["input_ids"]
        assert batch["input_ids"][row][batch["attention_mask"][row] == 1].tolist() == ids
        assert batch["labels"][row][batch["labels"][row] != -100].tolist() == ids[1:]
        assert ids[-1] == tokenizer.eos_token_id
    config = transformers.AutoConfig.from_pretrained(out, trust_remote_code=True)
    assert config.pad_token_id == tokenizer.pad_token_id != config.eos_token_id


def test_the_evaluator_reads_a_folder_without_running_its_code(transformers, tmp_path):
    run = make_run(tmp_path / "run", sequence_len=48)
    out = export_run(run, tmp_path / "out")
    for path in out.glob("*.py"):
        path.write_text("raise RuntimeError('the code of the folder ran')")
    register_with_transformers()
    evaluated = open_hugging_face(str(out), torch.device("cpu"), torch.float32)
    ids = torch.tensor([run.tokenizer.encode("The river and the sea")])
    torch.testing.assert_close(evaluated.scorer(ids), run.model(ids), rtol=0, atol=2e-5)
    assert evaluated.scorer.context_limit == 48
    assert evaluated.tokenizer.bos_id == run.tokenizer.bos_id
    assert evaluated.tokenizer.encode("The sea") == run.tokenizer.encode("The sea")
