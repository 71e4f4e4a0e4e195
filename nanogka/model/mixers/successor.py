"""The projection-free mixer that this project recommends: GKA that answers with what followed (docs/STUDY.md)."""

from nanogka.model.mixers.gaussian import GaussianMixer


class SuccessorMixer(GaussianMixer):
    """Gaussian Kernel Attention with successor keys, queries and keys scaled and shifted per channel, value embeddings
    and a smear of the embeddings.

    Kernel regression over the past: a head looks for the positions that resemble this one and returns their successors,
    where the paper's returns those positions themselves, this one foremost.
    """

    name, letter = "successor", "S"
    label, color = "GKA, successor keys", "#009E73"
    options = GaussianMixer.options | {
        "successor_keys": "full",
        "qk_affine": True,
        "value_embeddings": True,
        "smear": True,
    }
