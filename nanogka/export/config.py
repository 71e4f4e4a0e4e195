"""The configuration and the weights of a `GPT` in exported form: options resolved, parameters renamed."""

from torch import Tensor

from nanogka.model import GPT, MIXERS, GPTConfig
from nanogka.model.layers import Mixer

HEAD = "lm_head."
# PEFT finds modules by the ends of their names, so no name may be the end of another (`embedding`, `smear_gate`).
EXPORTED_NAMES = {"value_embedding.table": "value_embeddings.table", "value_embedding.gate": "value_embeddings.gates"}


def network_config(model: GPT) -> dict:
    """The arguments of `NanogkaConfig` that describe `model`. Raises ValueError if a mixer has no exported form."""
    config: GPTConfig = model.config
    snapshot = config.snapshot
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.n_embd,
        "num_hidden_layers": config.n_layer,
        "num_attention_heads": config.n_head,
        "max_position_embeddings": config.sequence_len,
        "rotary_base": config.rope_theta,
        "final_logit_softcapping": config.logit_cap,
        "smear": "gated" if model.smear_gate is not None else config.has_smear,
        "backout": snapshot.backout is not None,
        "value_gate": [snapshot.gate_features, snapshot.gate_range],
        "qk_scale": snapshot.qk_scale,
        "mixers": [layer_options(block.mixer) for block in model.blocks],
    }


def layer_options(mixer: Mixer) -> dict:
    """The options of one layer, which `mixers_nanogka.Mixer` reads. Raises ValueError if it has no exported form."""
    # `vars` and not `getattr`: a subclass that overrides a method computes something else and must not inherit this.
    kind = vars(type(mixer)).get("exported")
    if kind is None:
        expected = ", ".join(name for name, known in MIXERS.items() if vars(known).get("exported"))
        raise ValueError(
            f"run: got a layer of the mixer {mixer.name}, which has no exported form; expected {expected}. "
            "For an own mixer set `exported` and add a class to mixers_nanogka.py"
        )
    return {"kind": kind} | mixer.exported_options()


def network_weights(model: GPT) -> dict[str, Tensor]:
    """The parameters by their exported names: all except the head's get the prefix `model.`"""
    return {exported_name(name): value for name, value in model.state_dict().items()}


def exported_name(name: str) -> str:
    """The name in an exported folder of the parameter `name` of a `GPT`."""
    for ours, theirs in EXPORTED_NAMES.items():
        name = name.replace(ours, theirs)
    return name if name.startswith(HEAD) else f"model.{name}"
