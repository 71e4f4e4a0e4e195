"""The exported network is ours: logits, cache, padding, beams, for every mixer and option."""

import pytest
import remote
import safetensors.torch as safetensors
import torch
from generate_models import random_prompt, small_model

from nanogka.export.config import exported_name, layer_options, network_config, network_weights
from nanogka.model import MIXERS
from nanogka.model.mixers.gaussian import GaussianMixer

CASES = {
    **{mixer.name: {"pattern": mixer.letter} for mixer in MIXERS.values()},
    "SSD": {"pattern": "SSD", "windows": "S"},
    "GGM": {"pattern": "GGM", "bandwidth_init": 1.5, "logit_cap": 5.0, "rotary_base": 500.0},
    "own keys": {"pattern": "S", "successor_keys": False, "value_embeddings": False},
    "july": {"pattern": "GSD", "network": "july", "qk_affine": True},
    "shift": {"pattern": "D", "successor_keys": True, "qk_affine": True, "learned_temperature": True},
    "temperature": {"pattern": "VDD", "network": "july", "learned_temperature": True},
    "full": {"pattern": "SDV", "short_conv": 3, "value_embeddings": True},
    "features": {"pattern": "M", "mixture_routing": "features", "mixture_routing_dim": 5},
    "successor_routing": {"pattern": "M", "mixture_routing": "successor", "mixture_components": 3},
}
EXACT = {"rtol": 0, "atol": 1e-5}


def exported(ours):
    """The exported form of a model."""
    theirs = remote.NanogkaForCausalLM(remote.NanogkaConfig(**network_config(ours))).eval()
    theirs.load_state_dict(network_weights(ours))
    return theirs


def pair(case, sequence_len=32):
    """Our model and the exported one of a case, 3 layers with windows of half the context."""
    ours = small_model(sequence_len=sequence_len, **CASES[case])
    with torch.no_grad():
        ours.lm_head.weight.mul_(0.5)  # a trained model's logits are no larger
        for name, parameter in ours.named_parameters():
            if name.endswith("log_bandwidth"):  # every head has its own
                parameter.add_(torch.linspace(-0.3, 0.2, parameter.numel()))
    return ours, exported(ours)


def rows(count, length=32):
    """(count, length) ids of ordinary bytes."""
    return torch.tensor([random_prompt(length, seed) for seed in range(count)])


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_logits_are_ours_whole_and_in_pieces(case):
    """Whole, by the literal attention function, and through the cache: a prompt, a piece, then token by token."""
    ours, theirs = pair(case)
    ids = rows(2)
    expected = ours(ids)
    torch.testing.assert_close(theirs(ids, use_cache=False).logits, expected, **EXACT)
    cache, found = None, []
    for piece in ids.split([20, 3, *[1] * 9], dim=1):
        output = theirs(piece, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        found.append(output.logits)
    torch.testing.assert_close(torch.cat(found, 1), expected, **EXACT)
    theirs.set_attn_implementation("eager")
    torch.testing.assert_close(theirs(ids, use_cache=False).logits, expected, **EXACT)


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_a_row_padded_on_the_left_is_as_if_alone(case):
    _, theirs = pair(case)
    ids = rows(2)
    pads = torch.tensor([17, 0])
    mask = (torch.arange(28) >= pads[:, None]).long()
    padded = torch.where(mask.bool(), ids[:, :28], 7)
    first = theirs(padded[:, :22], attention_mask=mask[:, :22], use_cache=True)
    cache, logits = first.past_key_values, [first.logits]
    for t in range(22, 28):
        output = theirs(padded[:, t : t + 1], attention_mask=mask[:, : t + 1], past_key_values=cache)
        logits.append(output.logits)
    logits = torch.cat(logits, 1)
    for row, pad in enumerate(pads.tolist()):
        alone = theirs(padded[row : row + 1, pad:], use_cache=False).logits
        torch.testing.assert_close(logits[row : row + 1, pad:], alone, **EXACT)


@pytest.mark.parametrize("case", ["successor", "mixture", "full"])
@pytest.mark.parametrize("choice", [{"num_beams": 3}, {"do_sample": True, "num_return_sequences": 2, "top_k": 20}])
def test_beams_and_samples_are_the_same_with_the_cache_and_without(case, choice):
    _, theirs = pair(case)
    mask = (torch.arange(12) >= torch.tensor([[5], [0]])).long()
    found = []
    for use_cache in (True, False):
        torch.manual_seed(3)
        options = {"max_new_tokens": 12, "pad_token_id": 0, "use_cache": use_cache, **choice}
        found.append(theirs.generate(rows(2, 12), attention_mask=mask, **options))
    assert found[0].tolist() == found[1].tolist()


@pytest.mark.parametrize("pattern,share", [("G", 1 / 2), ("D", 1), ("S", 1 / 2 + 2 * 4 / (3 * 2 * 64 * 4))])
def test_gaussian_layers_cache_half_and_windows_cut_the_cache_short(pattern, share):
    """`successor` also stores each token's id on two layers, for its value embeddings."""
    cache = exported(small_model(pattern, windows="L", sequence_len=64))(rows(3, 40), use_cache=True).past_key_values
    held = sum(t.numel() * t.element_size() for layer in cache.layers for t in (layer.keys, layer.values))
    assert held == share * 2 * 3 * 3 * 40 * 64 * 4  # k and v of 3 layers and rows, 40 positions of 64 float32
    cache = exported(small_model(pattern, windows="S", sequence_len=20))(rows(1, 40), use_cache=True).past_key_values
    kept = 10 + (pattern == "S")  # a successor's window looks back one position further
    assert [layer.keys.shape[-2] for layer in cache.layers] == [kept, kept, 40]
    assert cache.layers[0].keys.untyped_storage().nbytes() == kept * 64 * 4


@torch.no_grad()
def test_an_export_without_the_newer_options_of_attention_has_them_off():
    ours, _ = pair("full")
    config = network_config(ours)
    for options in config["mixers"]:
        for name in ("successor_keys", "learned_temperature"):
            options.pop(name, None) if options["kind"] == "softmax" else None
    theirs = remote.NanogkaForCausalLM(remote.NanogkaConfig(**config)).eval()
    theirs.load_state_dict(network_weights(ours))
    torch.testing.assert_close(theirs(rows(2), use_cache=False).logits, ours(rows(2)), **EXACT)


def test_caches_that_cannot_work_are_refused():
    _, theirs = pair("gaussian")
    with pytest.raises(ValueError, match="rewind"):
        theirs.generate(rows(1, 8), prompt_lookup_num_tokens=2, max_new_tokens=20, pad_token_id=0)
    with pytest.raises(ValueError, match="StaticCache, expected None or a cache that this model returned"):
        theirs.generate(rows(1, 8), cache_implementation="static", max_new_tokens=4, pad_token_id=0)
    filled = remote.transformers.DynamicCache()
    for layer in range(3):
        filled.update(torch.zeros(1, 2, 4, 32), torch.zeros(1, 2, 4, 32), layer)
    with pytest.raises(ValueError, match="that another program filled .as prefix tuning does."):
        theirs(rows(1, 8), past_key_values=filled)
    with pytest.raises(ValueError, match="generate_batch: expected generate"):
        theirs.generate_batch([[1, 2, 3]])
    config = remote.NanogkaConfig(**network_config(pair("gaussian")[0]))
    config._attn_implementation = "paged|eager"
    with pytest.raises(ValueError, match=r"attn_implementation.*paged\|eager"):
        remote.NanogkaForCausalLM._from_config(config)


@pytest.mark.parametrize("case", ["successor", "july", "gaussian", "full"])
def test_added_tokens_get_rows_in_every_table(case, tmp_path):
    """The old tokens' logits stay, a new token is read and learned, and the grown model is saved and cut back."""
    _, theirs = pair(case)
    ids = rows(2, 12)
    before = theirs(ids, use_cache=False).logits.detach()
    assert theirs.resize_token_embeddings(304).num_embeddings == theirs.config.vocab_size == 304
    torch.testing.assert_close(theirs(ids, use_cache=False).logits[..., :300], before, **EXACT)
    ids[:, 5] = 303
    theirs(ids, labels=ids).loss.backward()
    tables = [(name, p) for name, p in theirs.named_parameters() if name.endswith(("table.weight", "embedding.weight"))]
    assert [(name, len(p)) for name, p in tables] == [(name, 304) for name, _ in tables]
    for name, parameter in tables:
        assert parameter.grad[303].any(), name
        assert parameter[303].isfinite().all(), name
    theirs.save_pretrained(tmp_path)
    loaded = remote.NanogkaForCausalLM.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(loaded(ids).logits, theirs(ids).logits, **EXACT)
    theirs.resize_token_embeddings(300)
    ids[:, 5] = 0
    torch.testing.assert_close(theirs(ids[:, :5], use_cache=False).logits, before[:, :5], **EXACT)


def test_another_attention_function_gets_the_operands_and_every_argument():
    """As vLLM has one: it gets the layer, q, k and v, the scale, and its own arguments."""
    seen = []

    def attention(module, query, key, value, mask, scaling, **kwargs):
        seen.append((module.layer_idx, mask, scaling, kwargs["attention_instances"]))
        return remote.transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS["sdpa"](
            module, query, key, value, mask, scaling=scaling
        )

    remote.transformers.AttentionInterface.register("recorded", attention)
    _, theirs = pair("gaussian")
    theirs.set_attn_implementation("recorded")
    theirs(rows(1, 8), attention_instances="theirs", use_cache=False)
    assert seen == [(layer, None, 1.0, "theirs") for layer in range(3)]


@pytest.mark.parametrize("case", ["full", "shift", "GGM"])
@pytest.mark.parametrize("checkpointing", [None, {"use_reentrant": False}])
def test_gradients_and_loss_are_ours(case, checkpointing):
    ours, theirs = pair(case)
    ids = rows(2)
    if checkpointing:
        theirs.gradient_checkpointing_enable(checkpointing)
    targets = torch.cat([ids[:, 1:], torch.full((2, 1), -1)], 1)
    expected = ours(ids, targets)
    found = theirs.train()(ids, labels=ids).loss
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    expected.backward()
    found.backward()
    gradients = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        found = gradients[exported_name(name)].grad
        torch.testing.assert_close(found, parameter.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("case", [pytest.param("full", marks=pytest.mark.slow), "mixture"])
@torch.no_grad()
def test_a_traced_graph_has_rows_and_lengths_of_any_size_and_a_mask(case):
    """torch.export, the first step of ONNX, traces one graph for all sizes and both values of a mask."""
    _, theirs = pair(case)
    mask = (torch.arange(20) >= torch.tensor([[3], [0]])).long()
    size = None if case == "mixture" else torch.export.Dim.DYNAMIC  # its memory goes through the row in chunks
    shapes = {"input_ids": {0: size, 1: size}, "attention_mask": {0: size, 1: size}, "use_cache": None}
    inputs = {"input_ids": rows(2)[:, :20], "attention_mask": mask, "use_cache": False}
    program = torch.export.export(theirs, (), inputs, dynamic_shapes=shapes).module(check_guards=False)
    torch.testing.assert_close(program(**inputs).logits[mask == 1], theirs(**inputs).logits[mask == 1], **EXACT)
    if case != "mixture":
        inputs = {"input_ids": rows(3, 29), "attention_mask": torch.ones(3, 29, dtype=torch.long), "use_cache": False}
        torch.testing.assert_close(program(**inputs).logits, theirs(**inputs).logits, **EXACT)


def test_only_eager_attention_returns_weights(monkeypatch):
    _, theirs = pair("gaussian")
    warnings = []
    monkeypatch.setattr(remote.modeling_nanogka.logger, "warning_once", warnings.append)
    assert theirs(rows(1, 8), output_attentions=True).attentions == (None,) * 3
    theirs.set_attn_implementation("eager")
    weights = theirs(rows(1, 8), output_attentions=True).attentions
    torch.testing.assert_close(torch.stack(weights).sum(-1), torch.ones(3, 1, 2, 8))
    assert len(warnings) == 1


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("case", ["full", "july", "shift"])
def test_each_text_of_a_packed_row_is_as_if_alone(case, attention):
    """Loss and gradients, as TRL's packing and DataCollatorWithFlattening pass the rows: position ids that restart."""
    _, theirs = pair(case)
    theirs.set_attn_implementation(attention)
    lengths = [20, 1, 27, 16]
    texts = [torch.tensor([random_prompt(length, seed)]) for seed, length in enumerate(lengths)]
    packed, positions = torch.cat(texts, 1), torch.cat([torch.arange(length) for length in lengths])[None]
    labels = packed.masked_fill(positions == 0, -100)
    logits = theirs(packed, position_ids=positions).logits
    for text, found in zip(texts, logits.split(lengths, 1)):
        torch.testing.assert_close(found, theirs(text).logits, **EXACT)
    alone = sum(theirs(text, labels=text, num_items_in_batch=1).loss for text in texts if text.shape[1] > 1)
    alone.backward()
    expected = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    theirs.zero_grad(set_to_none=True)
    together = theirs(packed, position_ids=positions, labels=labels, num_items_in_batch=1).loss
    torch.testing.assert_close(together, alone, rtol=1e-6, atol=0)
    together.backward()
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-4, msg=name)
    # Two packed rows, one padded on the left and one on the right.
    both, mask = torch.full((2, 70), 7), torch.zeros(2, 70, dtype=torch.long)
    both[0, 6:], both[1, :64], mask[0, 6:], mask[1, :64] = packed, packed, 1, 1
    ids = torch.zeros_like(both)
    ids[0, 6:], ids[1, :64] = positions, positions
    found = theirs(both, attention_mask=mask, position_ids=ids).logits
    torch.testing.assert_close(found[0, 6:], logits[0], **EXACT)
    torch.testing.assert_close(found[1, :64], logits[0], **EXACT)


def padded(texts, side):
    """A batch of texts, padded on one `side`, as transformers' collators build it."""
    width = max(map(len, texts))
    batch = {name: torch.zeros(len(texts), width, dtype=torch.long) for name in ("input_ids", "attention_mask")}
    batch |= {"input_ids": batch["input_ids"] + 7, "labels": batch["input_ids"] - 100}
    for row, text in enumerate(texts):
        place = slice(width - len(text), width) if side == "left" else slice(len(text))
        for name, values in (("input_ids", text), ("labels", text), ("attention_mask", 1)):
            batch[name][row, place] = values
    return batch


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("case", ["full", "july", "mixture"])
def test_a_padded_batch_has_the_loss_and_the_gradient_of_its_texts_alone(case, side, packed):
    """Nothing is predicted from padding. A packed row also holds a second text."""
    if packed and case == "mixture":
        pytest.skip("mixture layers refuse packed rows")
    _, theirs = pair(case)
    texts = [torch.tensor(random_prompt(length, length)) for length in (9, 1, 25, 14)]
    count = sum(len(text) - 1 for text in texts)
    alone = sum(theirs(text[None], labels=text[None], num_items_in_batch=count).loss for text in texts if len(text) > 1)
    alone.backward()
    expected = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    theirs.zero_grad(set_to_none=True)
    if packed:
        batch = padded([torch.cat(texts[:2]), torch.cat(texts[2:])], side)
        positions = [torch.cat([torch.arange(len(text)) for text in two]) for two in (texts[:2], texts[2:])]
        batch["position_ids"] = padded(positions, side)["labels"].clamp_min(0)
        second = (batch["position_ids"][:, 1:] == 0) & batch["attention_mask"][:, :-1].bool()
        batch["labels"][:, 1:][second] = -100  # by the collator
    else:
        batch = padded(texts, side)
    found = theirs(**batch).loss
    torch.testing.assert_close(found, alone, rtol=1e-5, atol=0)
    found.backward()
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.parametrize("kind", ["causal", "classes", "numbers", "several classes"])
def test_accumulated_gradients_are_those_of_one_batch(kind):
    """As Trainer accumulates: it gives the number of labels to a class that takes it, or else divides by the parts."""
    torch.manual_seed(1)
    ours, theirs = pair("gaussian")
    batch = padded([torch.tensor(random_prompt(length, length)) for length in (5, 8, 3, 7)], "left")
    if kind != "causal":
        labels = {
            "classes": [2, 0, 1, 2],
            "numbers": [0.5, -1.0, 2.0, 0.25],
            "several classes": torch.rand(4, 3).round(),
        }
        config = remote.NanogkaConfig(**network_config(ours), num_labels=1 if kind == "numbers" else 3, pad_token_id=7)
        theirs = remote.modeling_nanogka.NanogkaForSequenceClassification(config)
        batch["labels"] = torch.as_tensor(labels[kind])
    # Trainer's rule: the attribute, or whether forward takes keywords, which it does.
    takes = getattr(theirs, "accepts_loss_kwargs", True)
    gradients = []
    for size in (4, 1):
        theirs.zero_grad()
        for parts in zip(*(values.split(size) for values in batch.values())):
            count = {"num_items_in_batch": torch.tensor(5 + 8 + 3 + 7 - 4)} if takes else {}
            loss = theirs(**dict(zip(batch, parts)), **count).loss
            (loss if takes else loss / (4 // size)).backward()
        gradients.append({name: parameter.grad.clone() for name, parameter in theirs.named_parameters()})
    for name, expected in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], expected, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("case", CASES)
def test_no_name_of_a_module_is_the_end_of_another_one(case):
    """PEFT finds modules by the ends of their names: `embedding` would also find a `value_embedding`."""
    paths = [name for name, _ in pair(case)[1].named_modules() if name]
    names = {path.rpartition(".")[2] for path in paths} - set("0123456789")
    found = {(name, path) for name in names for path in paths if path.endswith(name)}
    assert [(name, path) for name, path in sorted(found) if path.rpartition(".")[2] != name] == []


@pytest.mark.parametrize("case", ["successor", "july"])
def test_an_export_with_the_old_names_is_loaded(case, tmp_path):
    _, theirs = pair(case)
    theirs.save_pretrained(tmp_path)
    weights = safetensors.load_file(tmp_path / "model.safetensors")
    renamed = [
        name.replace("embeddings.gates", "embedding.gate").replace("embeddings.table", "embedding.table")
        for name in weights
    ]
    old = dict(zip(renamed, weights.values()))
    assert sum(name not in weights for name in old) == sum("value_embeddings" in name for name in weights) > 0
    safetensors.save_file(old, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded = remote.NanogkaForCausalLM.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(loaded(rows(2)).logits, theirs(rows(2)).logits, **EXACT)
    loaded.save_pretrained(tmp_path / "again")
    again = remote.NanogkaForCausalLM.from_pretrained(tmp_path / "again").eval()
    torch.testing.assert_close(again(rows(2)).logits, theirs(rows(2)).logits, **EXACT)


@pytest.mark.parametrize(
    "options", [{"trainable_token_indices": {"embedding": [5, 6]}}, {"modules_to_save": ["embedding"]}]
)
def test_peft_trains_the_embedding_that_its_options_name(options):
    peft = pytest.importorskip("peft")
    _, theirs = pair("successor")
    tuned = peft.get_peft_model(theirs, peft.LoraConfig(r=2, target_modules=["c_fc"], task_type="CAUSAL_LM", **options))
    tuned(input_ids=rows(1), labels=rows(1)).loss.backward()
    trained = [name for name, p in tuned.named_parameters() if p.requires_grad and "lora" not in name]
    assert len(trained) == 1
    assert trained[0].startswith("base_model.model.model.embedding.")


def test_packed_rows_are_refused_where_a_state_runs_through_them():
    positions = torch.tensor([[0, 1, 2, 0, 1, 0, 1, 2]])
    for case, options in (("mixture", {}), ("gaussian", {"past_key_values": remote.transformers.DynamicCache()})):
        _, theirs = pair(case)
        with pytest.raises(ValueError, match="position_ids: "):
            theirs(rows(1, 8), position_ids=positions, **options)
        theirs(rows(1, 8), position_ids=torch.arange(8)[None], **options)


def test_a_mixer_without_an_exported_form_is_named():
    class Strange(GaussianMixer):
        name = "strange"

    mixer = Strange(small_model().config, 0)
    with pytest.raises(ValueError, match="run: got a layer of the mixer strange, which has no exported form"):
        layer_options(mixer)
