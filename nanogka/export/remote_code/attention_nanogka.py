"""Parts of a nanogka model: its cache, the positions and masks of a forward pass, and operations on single channels.

Shapes: B rows, T new positions, S positions including cached ones, H heads, D features per head.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

EPS = torch.finfo(torch.float32).eps
OLD_NAMES = {  # of weights in exports from before 27 November 2026: ends of them were names of other modules
    "value_embedding.table": "value_embeddings.table",
    "value_embedding.gate": "value_embeddings.gates",
}
MASKED_BACKENDS = ("eager", "sdpa")  # attention functions that get a mask; others (vLLM's) find causality themselves


class LayerCache(DynamicLayer):
    """One layer of the cache: (B, H, S, …) of the last `window` positions, and named states.

    A Gaussian layer stores x_h as keys. As values it stores nothing, or the tokens of its value embeddings.
    """

    def __init__(self, window=None):
        super().__init__()
        self.window, self.length, self.states = window, 0, {}

    def update(self, keys, values, *args, **kwargs):
        """Add positions and return all that they may see."""
        if self.keys is not None:
            keys, values = torch.cat([self.keys, keys], -2), torch.cat([self.values, values], -2)
        self.is_initialized, self.dtype, self.device = True, keys.dtype, keys.device
        self.keys, self.values = (t if self.window is None else t[..., -self.window :, :] for t in (keys, values))
        if self.window is not None and keys.shape[-2] > self.window + 1:  # a view would keep a long prompt in memory
            self.keys, self.values = self.keys.clone(), self.values.clone()
        return keys, values

    def with_history(self, name, x, count):
        """Prepend to x (B, H, T, …) the `count` positions before it, or as many as there are, and store its last."""
        if name in self.states:
            x = torch.cat([self.states[name], x], -2)
        self.states[name] = x[..., max(0, x.shape[-2] - count) :, :]
        return x

    def change_rows(self, change):
        """Apply `change` to every tensor (B, …)."""
        if self.keys is not None:
            self.keys, self.values = change(self.keys), change(self.values)
        self.states = {name: change(state) for name, state in self.states.items()}

    def get_seq_length(self, *args):
        return self.length

    def reorder_cache(self, beam_idx):
        self.change_rows(lambda t: t.index_select(0, beam_idx.to(t.device)))

    def batch_repeat_interleave(self, repeats):
        self.change_rows(lambda t: t.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices):
        self.change_rows(lambda t: t[indices, ...])

    def reset(self):
        self.__init__(self.window)

    def crop(self, *args):
        raise ValueError("This cache drops positions outside its windows, so assisted decoding cannot rewind it")


def as_layer_cache(cache, windows):
    """`cache` with our layers: a new one, or one that transformers created and nothing has filled."""
    cache = DynamicCache() if cache is None else cache
    ours = isinstance(cache, DynamicCache) and all(isinstance(layer, LayerCache) for layer in cache.layers)
    if not ours and not (isinstance(cache, DynamicCache) and cache.get_seq_length() == 0):
        filled = " that another program filled (as prefix tuning does)" if isinstance(cache, DynamicCache) else ""
        expected = "None or a cache that this model returned"
        raise ValueError(f"past_key_values: got a {type(cache).__name__}{filled}, expected {expected}")
    if not ours or not cache.layers:
        cache.layers = [LayerCache(window) for window in windows]
    return cache


class Context:
    """Positions of the tokens of a forward pass: `positions` (B or 1, S), −1 for padding, the last T of them new.

    A packed row holds several texts, and its position ids restart with each. `texts` (B or 1, T) numbers them, so that
    no text sees another. None stands for one text per row.
    """

    def __init__(self, config, ids, embeddings, attention_mask, position_ids, cache):
        self.ids, self.config, self.masks = ids, config, {}
        self.length = length = embeddings.shape[1]
        device = embeddings.device
        past = 0 if cache is None else cache.get_seq_length()
        traced = torch.compiler.is_compiling()  # a traced graph cannot read values: it gets the mask that suits any
        self.padded = attention_mask is not None and (traced or not bool(attention_mask.all()))
        if self.padded and attention_mask.shape[1:] != (past + length,):
            raise ValueError(f"attention_mask: got {tuple(attention_mask.shape)}, expected (B, {past + length})")
        # Other attention functions (vLLM's) join rows themselves, and their position ids restart with every request.
        packable = position_ids is not None and not past and config._attn_implementation in MASKED_BACKENDS
        self.texts = packed_texts(position_ids, attention_mask if self.padded else None) if packable else None
        self.packed = self.texts is not None and not traced
        if self.padded:
            present = attention_mask != 0
            counts = present.cumsum(1)
            if self.texts is not None:  # count from the start of each text
                starts = F.pad(self.texts.diff(dim=1) > 0, (1, 0))
                counts = counts - (counts - present.long()).where(starts, 0).cummax(1).values
            self.positions = (counts - 1).masked_fill(~present, -1)
        elif position_ids is not None and not past:
            self.positions = position_ids
        else:
            self.positions = torch.arange(past + length, device=device)[None]
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=device) / config.head_dim
        frequencies = torch.exp(exponents * -math.log(config.rotary_base))
        angles = self.positions.clamp_min(0).float()[:, None, :, None] * frequencies
        self.cos, self.sin = angles.cos(), angles.sin()

    @property
    def new(self):
        """(B or 1, T) positions of the new tokens."""
        return self.positions[:, -self.length :]

    def features(self, x):
        """z = norm(rope(x)) of the last positions, x (B, H, S, D)."""
        cos, sin = self.cos[..., -x.shape[-2] :, :], self.sin[..., -x.shape[-2] :, :]
        return norm(rotate(x.float(), cos, sin)).to(x.dtype)

    def mask(self, held, window, lookback):
        """(B or 1, 1, T, `held`) bool, true where a position is seen. None if sdpa needs no mask."""
        implementation = self.config._attn_implementation
        narrow = window is not None and held > window + 1
        plain = not self.padded and self.texts is None and not narrow and self.length in (1, held)
        if implementation not in MASKED_BACKENDS or (plain and implementation == "sdpa"):
            return None
        # Layers with the same window share a mask. `held` follows from the key, and is not a number in a traced graph.
        if (window, lookback) not in self.masks:
            keys = self.positions[:, None, -held:]
            distance = self.new[..., None] - keys
            seen = (distance >= 0) & (keys >= 0)
            if window is not None:
                seen &= distance <= window
            if self.texts is not None:
                seen &= self.texts[..., None] == self.texts[:, None]
            seen |= (self.new < 0)[..., None]  # padding sees everything: a row that sees nothing would be NaN
            self.masks[window, lookback] = seen[:, None]
        return self.masks[window, lookback]


def packed_texts(position_ids, attention_mask):
    """(B or 1, T): the number of the text that each token belongs to. None if each row is a single text.

    A text starts where its position does not follow the one before. Padding does not count. A traced graph cannot
    depend on values, so there the result is never None.
    """
    texts = F.pad(position_ids.diff(dim=1) != 1, (1, 0)).cumsum(1)
    if torch.compiler.is_compiling():
        return texts
    present = torch.ones_like(texts) if attention_mask is None else attention_mask
    last = texts.where(present != 0, 0).amax(1, keepdim=True)
    return texts if bool(((present != 0) & (texts != last)).any()) else None


def rotate(x, cos, sin):
    """Rotary embedding of x (…, D): its halves are the coordinates of D / 2 points, turned by the angles (…, D / 2)."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos + second * sin, second * cos - first * sin], -1)


def norm(x):
    """RMS norm without parameters."""
    return F.rms_norm(x, x.shape[-1:], eps=EPS)


def shift(x, steps, positions):
    """The values of x (B, H, S, D) `steps` before its last positions (B or 1, T); zeros before a text starts."""
    x = F.pad(x, (0, 0, max(0, positions.shape[1] + steps - x.shape[-2]), 0))
    end = x.shape[-2] - steps
    return x[..., end - positions.shape[1] : end, :] * (positions >= steps)[:, None, :, None]


def vector(*shape, value=0.0):
    """A parameter that stays in float32, whatever dtype the model is built in."""
    return nn.Parameter(torch.full(shape, value, dtype=torch.float32))


class ChannelAffine(nn.Module):
    """a ∘ x + b of features (B, H, S, D)."""

    def __init__(self, n_head, head_dim):
        super().__init__()
        self.scale, self.shift = vector(n_head, head_dim, value=1.0), vector(n_head, head_dim)

    def forward(self, x):
        return x * self.scale[:, None].to(x.dtype) + self.shift[:, None].to(x.dtype)


class ShortConvolution(nn.Module):
    """Σ_t w_t ∘ x_{i−t}, each channel separately."""

    def __init__(self, width, channels):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, channels))

    def forward(self, x, positions):
        taps = self.weight.to(x.dtype).view(len(self.weight), x.shape[1], 1, -1)
        return sum(tap * shift(x, steps, positions) for steps, tap in enumerate(taps))


class ValueEmbedding(nn.Module):
    """A second embedding of each token, added to the values through a gate per head."""

    def __init__(self, config):
        super().__init__()
        self.table = nn.Embedding(config.vocab_size, config.hidden_size)
        self.features, self.most = config.value_gate  # kept here: vLLM's matrices do not know their size
        self.gates = nn.Linear(self.features, config.num_attention_heads, bias=False)

    def resize(self, count):
        """Give the table `count` tokens. A new token starts with the mean of the others."""
        rows = self.table.weight
        more = rows.detach().mean(0).expand(max(0, count - len(rows)), -1)
        rows = nn.Parameter(torch.cat([rows.detach()[:count], more]), requires_grad=rows.requires_grad)
        self.table.weight, self.table.num_embeddings = rows, count

    def forward(self, ids, x):
        """(B, H, S, D) for the values of tokens (B, S) with activations x (B, H, S, D)."""
        gate = self.most * torch.sigmoid(self.gates(x.transpose(1, 2).flatten(2)[..., : self.features]))
        return (gate[..., None] * self.table(ids).to(x.dtype).unflatten(-1, (x.shape[1], -1))).transpose(1, 2)


def eager_attention(module, query, key, value, attention_mask, scaling, **kwargs):
    """Attention that also returns its weights (B, H, T, S)."""
    weights = (query @ key.mT * scaling).masked_fill(~attention_mask, -math.inf).softmax(-1, dtype=torch.float32)
    return (weights.to(value.dtype) @ value).transpose(1, 2), weights
