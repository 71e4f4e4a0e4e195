"""A model of the transformers library behind our interface: same logits, same scores as the naive evaluator."""

from types import SimpleNamespace

import pytest
import torch
from evaluate_fakes import make_items
from naive_evaluator import check_against_naive

from nanogka.evaluate.core import evaluate_task
from nanogka.evaluate.models import HuggingFaceModel, open_hugging_face
from nanogka.evaluate.task import TYPES, LoadedTask, Task

CPU = torch.device("cpu")


def test_without_transformers_or_a_model_the_error_says_what_to_do(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="hf_path: got .*nowhere'"):
        open_hugging_face(tmp_path / "nowhere", CPU, torch.float32)
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(ValueError, match=r"hf_path: needs the library transformers: pip install -e '.\[hf\]'"):
        open_hugging_face(tmp_path, CPU, torch.float32)


@pytest.fixture(scope="module", params=["gpt2", "gemma2"])
def folder(request, tmp_path_factory):
    """A tiny model of random weights; gemma2 caps its logits after the head."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder = tmp_path_factory.mktemp(request.param)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<|endoftext|>": 0} | {letter: i + 1 for i, letter in enumerate(alphabet)}
    plain = Tokenizer(models.BPE(vocabulary, []))
    plain.pre_tokenizer, plain.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<|endoftext|>").save_pretrained(folder)
    torch.manual_seed(0)
    if request.param == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=257, n_positions=512, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
        )
    else:
        config = transformers.Gemma2Config(
            vocab_size=257, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, head_dim=16, max_position_embeddings=512, final_logit_softcapping=5.0,
        )  # fmt: skip
    config.initializer_range = 0.3
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def test_logits_are_the_librarys_and_scores_those_of_the_naive_evaluator(folder):
    import transformers

    evaluated, exact = (open_hugging_face(folder, CPU, dtype) for dtype in (torch.float32, torch.float64))
    model, tokenizer = evaluated.scorer, evaluated.tokenizer
    assert (model.context_limit, tokenizer.bos_id) == (512, 0)
    ids = torch.tensor([tokenizer.encode("a river of stones")])
    expected = transformers.AutoModelForCausalLM.from_pretrained(folder)(input_ids=ids).logits
    torch.testing.assert_close(model(ids), expected, rtol=1e-5, atol=1e-5)
    for type_ in TYPES:
        data = LoadedTask(Task("made_up", type_, num_fewshot=1), make_items(type_, 12))
        _, predictions = evaluate_task(model, tokenizer, data, batch_tokens=1000)
        check_against_naive(predictions, exact.scorer, exact.tokenizer, data, 1e-5, None, 512)


def test_a_model_that_names_no_context_reads_2048_tokens():
    for named, context in (
        ({}, 2048),
        ({"max_position_embeddings": None}, 2048),
        ({"max_position_embeddings": 77}, 77),
    ):
        library = SimpleNamespace(config=SimpleNamespace(vocab_size=5, **named), dtype=torch.float32)
        assert HuggingFaceModel(library).context_limit == context
