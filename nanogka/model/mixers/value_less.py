"""The paper's value-less transformer (VLT), between the baseline and GKA: learned W_Q and W_K, but no W_V."""

from nanogka.model.mixers.dot_product import DotProductMixer


class ValueLessMixer(DotProductMixer):
    """softmax(q·k / √D) attention whose values are the heads of the activations themselves."""

    name, letter = "value_less", "V"
    label, color = "value-less (VLT)", "#999933"
    options = DotProductMixer.options | {"value_embeddings": False}
    value_matrix = False
