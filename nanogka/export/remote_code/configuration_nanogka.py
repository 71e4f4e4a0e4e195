"""The configuration of a nanogka model for the library transformers."""

from transformers import PretrainedConfig


class NanogkaConfig(PretrainedConfig):
    """Shape of the network; `mixers` has the options of each layer's token mixer, all of them resolved."""

    model_type = "nanogka"
    keys_to_ignore_at_inference = ["past_key_values", "cache"]
    backout, value_gate, qk_scale = False, (32, 2.0), 1.0  # of the network, unless the file says otherwise

    def __init__(self, vocab_size=512, hidden_size=64, num_hidden_layers=1, num_attention_heads=1,
                 max_position_embeddings=2048, rotary_base=10000.0, final_logit_softcapping=15.0, smear=False,
                 mixers=None, **kwargs):  # fmt: skip
        self.vocab_size, self.hidden_size, self.num_hidden_layers = vocab_size, hidden_size, num_hidden_layers
        self.num_attention_heads = self.num_key_value_heads = num_attention_heads
        self.head_dim, self.intermediate_size = hidden_size // num_attention_heads, 4 * hidden_size
        self.max_position_embeddings, self.rotary_base = max_position_embeddings, rotary_base
        self.final_logit_softcapping, self.smear = final_logit_softcapping, smear
        self.mixers = mixers or [{"kind": "gaussian", "window": None}] * num_hidden_layers
        # vLLM and others read these names. Their windows count the position itself, ours only those before it.
        windows = [mixer["window"] for mixer in self.mixers]
        self.layer_types = ["full_attention" if w is None else "sliding_attention" for w in windows]
        self.sliding_window = next((w + 1 for w in windows if w is not None), None)
        for name in ("num_key_value_heads", "head_dim", "intermediate_size", "layer_types", "sliding_window"):
            kwargs.pop(name, None)
        super().__init__(**{"tie_word_embeddings": False} | kwargs)
