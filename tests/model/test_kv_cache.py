"""The decode cache: decoding with it is the network itself, and it takes the memory that the accounting says."""

import pytest
import torch
from generate_models import assert_decodes, small_model
from operators import peak_bytes

from nanogka.model import model_costs

LENGTH = 48  # sequence_len; the window is 24
OPTIONS = {
    "G": ("G", {}),
    "D": ("D", {}),
    "V": ("V", {}),
    "smear": ("GD", {"smear": True}),
    "successor": ("S", {}),
    "successor keys": ("S", {"qk_affine": False, "value_embeddings": False, "smear": False}),
    "own keys": ("S", {"successor_keys": False}),
    "convolution": ("GD", {"short_conv": 3}),
    "mixture": ("M", {"mixture_components": 7}),
    "mixture, features": ("M", {"mixture_components": 7, "mixture_routing": "features"}),
    "mixture, successor": ("GMD", {"mixture_components": 7, "mixture_routing": "successor"}),
    "july": ("GSD", {"network": "july"}),
    "july, D": ("D", {"network": "july", "qk_affine": True}),
    "shifted attention": ("D", {"successor_keys": True, "learned_temperature": True, "short_conv": 3}),
    "all": ("SDV", {"short_conv": 3, "value_embeddings": True, "smear": True}),
}
BY_OPTION = pytest.mark.parametrize("pattern, options", OPTIONS.values(), ids=OPTIONS)


def ids_of(rows, length, seed=0):
    return torch.randint(0, 256, (rows, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def decode(model, ids, chunks, cache=None):
    """Logits of `ids`, fed in chunks of these sizes."""
    cache = cache or model.new_cache(len(ids), ids.shape[1])
    outputs, start = [], 0
    for size in chunks:
        outputs.append(model(ids[:, start : start + size], cache=cache))
        start += size
    assert start == ids.shape[1]
    return torch.cat(outputs, dim=1)


@BY_OPTION
@pytest.mark.parametrize("chunks", [[1] * 48, [10, 30, 1, 1, 6]])
def test_any_chunks_give_the_logits_of_the_whole(pattern, options, chunks):
    model = small_model(pattern, sequence_len=LENGTH, **options)
    ids = ids_of(2, LENGTH)
    with torch.no_grad():
        whole = model(ids)
    torch.testing.assert_close(decode(model, ids, chunks), whole, atol=2e-5, rtol=0)


@BY_OPTION
@pytest.mark.parametrize("chunk", [7, 39, 60])  # behind 39 tokens, one is left of one row
def test_rows_of_different_lengths_do_not_see_their_padding(pattern, options, chunk):
    assert_decodes(small_model(pattern, sequence_len=LENGTH, **options), [3, 25, 40, 1], chunk, steps=6)


@BY_OPTION
def test_a_stream_goes_on_past_the_training_context(pattern, options):
    """Against one pass of a model with a longer context and the same windows, so that the length alone differs."""
    model = small_model(pattern, windows="SSL", sequence_len=LENGTH, **options)
    longer = small_model(pattern, windows="SSL", sequence_len=2 * LENGTH, **options)
    for block, other in zip(longer.blocks, model.blocks):
        block.mixer.window = other.mixer.window
    ids = ids_of(1, 2 * LENGTH)
    with torch.no_grad():
        whole = longer(ids)
    torch.testing.assert_close(decode(model, ids, [50] + [1] * 46), whole, atol=2e-5, rtol=0)


@pytest.mark.parametrize("pattern, prefix", [("G", 10), ("GD", 40), ("GM", 40)])
def test_forks_share_the_prefix_and_nothing_else(pattern, prefix):
    model = small_model(pattern, sequence_len=LENGTH)
    ids = ids_of(3, LENGTH)
    ids[:, :prefix] = ids[0, :prefix]
    parent = model.new_cache(1, LENGTH)
    with torch.no_grad():
        whole = model(ids)
        model(ids[:1, :prefix], cache=parent)
        fork, rest = parent.select([0, 0, 0]), [1] * (LENGTH - prefix)
        torch.testing.assert_close(decode(model, ids[:, prefix:], rest, fork), whole[:, prefix:], atol=2e-5, rtol=0)
        mine = decode(model, ids[1:2, prefix:], rest, parent)  # the parent after its children were written
        torch.testing.assert_close(mine, whole[1:2, prefix:], atol=2e-5, rtol=0)


def filled_cache(model, lengths, capacity, seed):
    """A cache with rows of random ids of these lengths, and these ids, which go on after the cached ones."""
    ids = ids_of(len(lengths), LENGTH, seed)
    padded, cache = ids[:, : max(lengths)].clone(), model.new_cache(len(lengths), capacity)
    for row, length in enumerate(lengths):
        padded[row, length:] = -1
    model.fill(padded, cache)
    return cache, ids


@BY_OPTION
def test_rows_that_are_appended_and_moved_decode_as_if_alone(pattern, options):
    """Among them rings that are full, not yet full, and too short because their cache has a small capacity."""
    model = small_model(pattern, sequence_len=LENGTH, **options)
    cache, ids = filled_cache(model, [30, 5], LENGTH, seed=1)
    other, more = filled_cache(model, [9, 28], 28, seed=2)
    cache.append(other, [1, 0, 0])
    assert cache.lengths == [30, 5, 28, 9, 9]
    cache.keep([0, 4, 2])
    assert cache.lengths == [30, 9, 28]
    rows = [ids[0], more[0], more[1]]
    for _ in range(4):
        lengths = list(cache.lengths)
        with torch.no_grad():
            logits = model(torch.stack([row[n : n + 1] for row, n in zip(rows, lengths)]), cache=cache)
            alone = torch.cat([model(row[None, : n + 1])[:, -1:] for row, n in zip(rows, lengths)])
        torch.testing.assert_close(logits, alone, atol=2e-5, rtol=0)


def test_a_row_that_joins_or_ends_moves_its_own_memory_and_growth_that_of_one_layer_at_a_time():
    model = small_model("G", windows="L", sequence_len=400)
    (other, _), caches, before = filled_cache(model, [30], 30, seed=2), [], []

    def fill_and_join():  # in one function, because the profiler sees only memory that it saw allocated
        caches.append(filled_cache(model, [9] * 20, 400, seed=1)[0])
        before.append(caches[0].bytes())
        caches[0].append(other, [0])

    peak, _ = peak_bytes(fill_and_join)
    (cache,), (before,) = caches, before
    assert cache.bytes() == 1.5 * before
    assert peak < 1.9 * before  # 1.5 for the rows, a third for the old memory of one of the three layers

    def join_and_end():
        for _ in range(3):
            cache.append(other, [0])
        cache.keep([*range(4), 23, *range(5, 21), 22, 21][:22])

    memory = [tensor.data_ptr() for layer in cache.tensors.values() for tensor in layer]
    peak, _ = peak_bytes(join_and_end)
    assert memory == [tensor.data_ptr() for layer in cache.tensors.values() for tensor in layer]
    assert peak < other.bytes()
    with pytest.raises(AssertionError, match="row 2 would be"):
        cache.keep([0, 2, 1])


@BY_OPTION
@pytest.mark.parametrize("context, dtype", [(20, torch.bfloat16), (25, torch.float32), (150, torch.bfloat16)])
def test_bytes_are_those_of_the_accounting(pattern, options, context, dtype):
    model = small_model(pattern, sequence_len=LENGTH, dtype=dtype, **options)
    cache = model.new_cache(1, context)
    decode(model, ids_of(1, context), [1, context - 2, 1], cache)
    assert cache.bytes() == model_costs(model.config).cache_bytes(context, dtype.itemsize)


def test_more_positions_than_the_capacity_are_refused_and_an_interrupted_cache_is_known():
    model = small_model("G", sequence_len=LENGTH)
    cache = model.new_cache(1, 10)
    with pytest.raises(ValueError, match="cache: got 11 positions"):
        model(ids_of(1, 11), cache=cache)
    assert cache.usable
    cache.prepare(ids_of(1, 3))
    assert not cache.usable
    assert model.new_cache(1, 1).capacity == 1
    with pytest.raises(ValueError, match="batch, capacity: got 0"):
        model.new_cache(0)
