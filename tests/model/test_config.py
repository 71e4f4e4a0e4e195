"""The one dial, the patterns, and every bad setting named at once."""

from dataclasses import replace

import pytest

from nanogka.model import MIXERS, GPTConfig, attention_name, mixer_pattern


def test_what_a_mixer_is_without_a_flag():
    """Checkpoints and studies name only what differs from these, so another default would change what they mean."""
    off = {"qk_affine": False, "short_conv": 0, "successor_keys": False, "learned_temperature": False}
    assert {name: {key: option.default for key, option in mixer.options.items()} for name, mixer in MIXERS.items()} == {
        "gaussian": {},
        "successor": {"successor_keys": True, "qk_affine": True, "value_embeddings": True},
        "dot_product": off | {"value_embeddings": True},
        "value_less": off | {"value_embeddings": False},
        "mixture": {"mixture_components": 64, "mixture_routing": "projected", "mixture_routing_dim": None},
    }


def test_which_numbers_a_mixer_takes():
    found = {key: option for mixer in MIXERS.values() for key, option in mixer.options.items() if option.kind is int}
    assert {key: (option.ge, option.le, option.at_most) for key, option in found.items()} == {
        "short_conv": (0, 64, ""),
        "mixture_components": (1, 4096, ""),
        "mixture_routing_dim": (1, None, "head_dim"),
    }


@pytest.mark.parametrize("depth,width,heads", [(1, 128, 1), (3, 256, 2), (20, 1280, 10)])
def test_width_is_64_a_layer_in_whole_heads_of_128(depth, width, heads):
    config = GPTConfig.from_depth(depth)
    assert (config.n_embd, config.n_head, config.head_dim) == (width, heads, 128)


@pytest.mark.parametrize("depth,ratio,size,heads", [(3, 40, 64, 2), (3, 43, 64, 3), (5, 7, 12, 3), (12, 64, 96, 8)])
def test_width_is_a_ratio_of_the_depth_in_whole_heads_of_any_size(depth, ratio, size, heads):
    config = GPTConfig.from_depth(depth, aspect_ratio=ratio, head_dim=size)
    assert (config.n_layer, config.n_embd, config.n_head, config.head_dim) == (depth, heads * size, heads, size)


def test_a_shape_that_cannot_be_is_named():
    for changes, said in (
        ({"aspect_ratio": 0}, "aspect_ratio: got 0, expected an integer of at least 1"),
        ({"head_dim": 0}, "head_dim: got 0, expected an even integer of at least 2"),
        ({"head_dim": 33}, "head_dim: got 33, expected an even integer of at least 2"),
        ({"aspect_ratio": 1, "head_dim": 4}, "n_embd: got 4, expected an even multiple of n_head = 1, at least 32"),
        ({"aspect_ratio": 10**9}, "n_embd: got 3000000000, expected"),
    ):
        with pytest.raises(ValueError) as caught:
            GPTConfig.from_depth(3, **changes)
        assert said in str(caught.value)


def test_the_defaults_are_those_of_depth_20_and_sizes_index_a_tensor():
    assert GPTConfig() == GPTConfig.from_depth(20)
    largest = GPTConfig(vocab_size=2**31 - 1, n_layer=1000)
    assert (largest.vocab_size, largest.n_layer) == (2_147_483_647, 1000)
    with pytest.raises(ValueError, match="n_layer: got 1001"):
        GPTConfig(n_layer=1001)
    with pytest.raises(ValueError, match="^vocab_size: got 2147483648, expected an integer from 1 to 2147483647$"):
        GPTConfig(vocab_size=2**31)


def test_a_network_that_is_not_the_default_is_named():
    assert GPTConfig.from_depth(2).variant == ""
    assert GPTConfig.from_depth(2, network="july").variant == ", network july"


def test_window_pattern_is_tiled_and_the_last_layer_is_full():
    config = GPTConfig.from_depth(6, sequence_len=100)
    assert config.windows() == [50, 50, 50, None, 50, None]
    assert GPTConfig.from_depth(4, window_pattern="LS", sequence_len=64).windows() == [None, 32, None, None]
    for length, window in ((100, 128), (512, 128), (516, 256), (2048, 512), (4096, 1024)):
        config = GPTConfig.from_depth(6, sequence_len=length, network="july")
        assert config.windows() == [window, window, window, None, window, None]


def test_mixers_follow_their_pattern():
    names = [mixer.name for mixer in GPTConfig.from_depth(5, "GGD").mixers()]
    assert names == ["gaussian", "gaussian", "dot_product", "gaussian", "gaussian"]
    assert [mixer_pattern(name) for name in ("gaussian", "dot_product", "GD")] == ["G", "D", "GD"]
    every = "".join(mixer.letter for mixer in MIXERS.values())
    assert mixer_pattern(every) == every
    assert [attention_name(pattern) for pattern in ("G", "DD", "GD")] == ["gaussian", "dot_product", "GD"]


def test_a_head_has_an_even_width():
    with pytest.raises(ValueError, match="n_embd: got 66, expected an even multiple of n_head = 2"):
        GPTConfig(n_embd=66, n_head=2)
    assert GPTConfig(n_embd=68, n_head=2).head_dim == 34


def test_every_bad_setting_is_named_at_once():
    with pytest.raises(ValueError) as error:
        GPTConfig(sequence_len=1, n_layer=0, n_embd=50, window_pattern="SX", mixer_pattern="", bandwidth_init=-1)
    lines = str(error.value).splitlines()
    names = ["sequence_len", "n_layer", "n_embd", "mixer_pattern", "window_pattern", "bandwidth_init"]
    assert [line.split(":")[0] for line in lines] == names
    assert all("got" in line and "expected" in line for line in lines)


@pytest.mark.parametrize(
    "attention, options, complaint",
    [
        ("gauss", {}, "attention: got .*"),
        ("gaussian", {"depth": 1001}, "depth: got 1001, "),
        ("gaussian", {"bandwidth_init": float("inf")}, "bandwidth_init: got inf"),
        ("gaussian", {"network": "march"}, "network: got 'march'"),
        ("successor", {"successor_keys": "mix"}, "successor_keys: got 'mix', "),
        ("dot_product", {"short_conv": -1}, "short_conv: got -1, "),
        ("mixture", {"mixture_routing": "keys"}, "mixture_routing: got 'keys', "),
        ("mixture", {"mixture_routing_dim": 129}, "mixture_routing_dim: got 129, "),
        ("mixture", {"mixture_components": 4097}, "mixture_components: got 4097, .* 4096"),
        ("mixture", {"mixture_components": "7"}, "mixture_components: got '7', expected an integer"),
        ("gaussian", {"short_conv": 3}, "short_conv: got 3, "),
        ("gaussian", {"exclude_self": True}, "exclude_self: got True"),
    ],
)
def test_what_nobody_means_and_options_of_another_mixer_are_refused(attention, options, complaint):
    with pytest.raises(ValueError, match=complaint):
        GPTConfig.from_depth(**{"depth": 2, "attention": attention} | options)


def test_a_configuration_that_an_earlier_version_wrote_is_read_if_what_is_gone_was_off():
    gone = {"successor_keys": "off", "exclude_self": False, "diagonal_metric": None, "short_conv": 0, "smear": False}
    config = GPTConfig.from_depth(2, vocab_size=50)
    before = {name: value for name, value in config.to_dict().items() if name != "network"}
    assert GPTConfig.from_dict(before) == config
    assert (config.rope_theta, GPTConfig.from_depth(2, network="july").rope_theta) == (1e4, 1e5)
    read = GPTConfig.from_dict(config.to_dict() | gone | {"mixture_components": None})
    assert (read.mixers(), read.has_smear) == (config.mixers(), False)
    for value in (True, 1, "on"):
        with pytest.raises(ValueError, match=f"diagonal_metric: got {value!r}"):
            GPTConfig.from_dict(config.to_dict() | {"diagonal_metric": value})
    successor = GPTConfig.from_depth(3, "successor", qk_affine=False, smear=True)
    assert GPTConfig.from_dict(successor.to_dict()) == successor
    assert GPTConfig.from_dict(successor.to_dict() | {"successor_keys": "full"}).options["successor_keys"] is True
    assert GPTConfig.from_dict(successor.to_dict() | {"successor_keys": "off"}).options["successor_keys"] is False


@pytest.mark.parametrize("rotary_base, expected", [(None, 1e5), (500.0, 500.0)])
def test_a_replaced_network_brings_its_own_values_unless_one_was_set(rotary_base, expected):
    february = GPTConfig.from_depth(2, rotary_base=rotary_base)
    for config in (february, GPTConfig.from_dict(february.to_dict())):
        july = replace(config, network="july")
        assert (july.rope_theta, july.has_smear, july.windows()) == (expected, True, [512, None])
        assert july.to_dict()["rotary_base"] == expected
