"""A `GPT` as the exported network has it: every layer's options resolved, parameters under their exported names."""

from torch import Tensor

from nanogka.model import GPT, MIXERS, GPTConfig
from nanogka.model.layers import Mixer
from nanogka.model.mixers.dot_product import DotProductMixer
from nanogka.model.mixers.gaussian import GaussianMixer
from nanogka.model.mixers.mixture import GaussianMixtureMixer
from nanogka.model.mixers.successor import SuccessorMixer
from nanogka.model.mixers.value_less import ValueLessMixer

HEAD = "lm_head."
# By class, not by descent: what overrides a method of these computes something else.
KINDS = {
    GaussianMixer: "gaussian",
    SuccessorMixer: "gaussian",
    DotProductMixer: "softmax",
    ValueLessMixer: "softmax",
    GaussianMixtureMixer: "mixture",
}
GAUSSIAN_OPTIONS = ("diagonal_metric", "data_bandwidth", "exclude_self")


def network_config(model: GPT) -> dict:
    """The arguments of `NanogkaConfig` that describe `model`.

    Raises:
        ValueError: if a layer's mixer has no exported form.
    """
    config: GPTConfig = model.config
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.n_embd,
        "num_hidden_layers": config.n_layer,
        "num_attention_heads": config.n_head,
        "max_position_embeddings": config.sequence_len,
        "rotary_base": config.rotary_base,
        "final_logit_softcapping": config.logit_cap,
        "smear": config.smears,
        "mixers": [layer_options(block.mixer) for block in model.blocks],
    }


def layer_options(mixer: Mixer) -> dict:
    """The options of one layer, as `modeling_nanogka.Mixer` reads them.

    Raises:
        ValueError: if the mixer has no exported form.
    """
    kind = KINDS.get(type(mixer))
    if kind is None:
        takes = ", ".join(name for name, known in MIXERS.items() if known in KINDS)
        raise ValueError(f"--run: got a layer of the mixer {mixer.name}, which has no exported form; takes {takes}")
    options = {"kind": kind, "window": mixer.window}
    if kind == "mixture":
        _, components, routing_dim = mixer.means.shape
        return options | {"components": components, "routing": mixer.routing, "routing_dim": routing_dim}
    options["value_embeddings"] = mixer.value_embedding is not None
    options["qk_affine"] = mixer.affine_q is not None
    options["short_conv"] = 0 if mixer.conv_q is None else len(mixer.conv_q.weight)
    if kind == "softmax":
        return options | {"value_matrix": mixer.value_matrix}
    return options | {name: mixer.option(name) for name in GAUSSIAN_OPTIONS} | {"successor_keys": mixer.successor_keys}


def network_weights(model: GPT) -> dict[str, Tensor]:
    """The parameters by their exported names: all but the head's belong to `model.`"""
    return {name if name.startswith(HEAD) else f"model.{name}": value for name, value in model.state_dict().items()}
