"""A nanogka model's cache, positions of tokens, operations on single channels, and the mask of who sees whom.

Shapes: B rows, T new positions, S positions with those of the cache, H heads, D features per head.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

EPS = torch.finfo(torch.float32).eps
OWN_MASKS = ("eager", "sdpa")  # attention functions that take a mask; others (vLLM's) know what is causal themselves


class LayerCache(DynamicLayer):
    """One layer of the cache: (B, H, S, …) of the last `keep` positions, and named states.

    A Gaussian layer keeps x_h as keys and, as values, nothing or the tokens of its value embeddings.
    """

    def __init__(self, keep=None):
        super().__init__()
        self.keep, self.length, self.states = keep, 0, {}

    def update(self, keys, values, *args, **kwargs):
        """Add positions; returns all that they may see."""
        if self.keys is not None:
            keys, values = torch.cat([self.keys, keys], -2), torch.cat([self.values, values], -2)
        self.is_initialized, self.dtype, self.device = True, keys.dtype, keys.device
        self.keys, self.values = (t if self.keep is None else t[..., -self.keep :, :] for t in (keys, values))
        if self.keep is not None and keys.shape[-2] > self.keep + 1:  # a view would hold a whole prompt
            self.keys, self.values = self.keys.clone(), self.values.clone()
        return keys, values

    def preceded(self, name, x, count):
        """x (B, H, T, …) behind the `count` positions before it, or as many as there were."""
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
        self.__init__(self.keep)

    def crop(self, *args):
        raise ValueError(
            "This cache forgets what its windows have passed: it cannot go back, as assisted decoding would"
        )


def own_cache(cache, keeps):
    """A cache whose layers are ours: a new one, or one that transformers made and nothing has filled."""
    cache = DynamicCache() if cache is None else cache
    ours = isinstance(cache, DynamicCache) and all(isinstance(layer, LayerCache) for layer in cache.layers)
    if not ours and not (isinstance(cache, DynamicCache) and cache.get_seq_length() == 0):
        raise ValueError(f"past_key_values: got a {type(cache).__name__}, expected this model's DynamicCache")
    if not ours or not cache.layers:
        cache.layers = [LayerCache(keep) for keep in keeps]
    return cache


class Context:
    """Positions of the tokens of a forward pass: `positions` (B or 1, S), −1 for padding, the last T of them new.

    A packed row holds several texts, and its position ids restart with each. `texts` (B or 1, T) numbers them, so that
    no text sees another; None stands for one text per row.
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
        packable = position_ids is not None and not past and config._attn_implementation in OWN_MASKS
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
        D = config.head_dim
        exponents = torch.arange(0, D, 2, dtype=torch.float32, device=device) / D
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
        first, second = x.float().chunk(2, dim=-1)
        return norm(torch.cat([first * cos + second * sin, second * cos - first * sin], -1)).to(x.dtype)

    def mask(self, held, window):
        """(B or 1, 1, T, S) bool, true where a position is seen; None where what is causal or all is."""
        implementation = self.config._attn_implementation
        narrow = window is not None and held > window + 1
        plain = not self.padded and self.texts is None and not narrow and self.length in (1, held)
        if implementation not in OWN_MASKS or (plain and implementation == "sdpa"):
            return None
        if (held, window) not in self.masks:
            keys = self.positions[:, None, -held:]
            distance = self.new[..., None] - keys
            seen = (distance >= 0) & (keys >= 0)
            if window is not None:
                seen &= distance <= window
            if self.texts is not None:
                seen &= self.texts[..., None] == self.texts[:, None]
            seen |= (self.new < 0)[..., None]  # padding sees all: nothing would be NaN
            self.masks[held, window] = seen[:, None]
        return self.masks[held, window]


def packed_texts(position_ids, attention_mask):
    """(B or 1, T): the number of the text that each token belongs to; None if all tokens of a row are of one text.

    A text starts where its position does not follow the one before. Padding does not count. The result is never None in
    a traced graph, which cannot ask.
    """
    texts = F.pad(position_ids.diff(dim=1) != 1, (1, 0)).cumsum(1)
    if torch.compiler.is_compiling():
        return texts
    present = torch.ones_like(texts) if attention_mask is None else attention_mask
    last = texts.where(present != 0, 0).amax(1, keepdim=True)
    return texts if bool(((present != 0) & (texts != last)).any()) else None


def norm(x):
    """RMS norm without parameters."""
    return F.rms_norm(x, x.shape[-1:], eps=EPS)


def before(x, steps, positions):
    """The values of x (B, H, S, D) `steps` before its last positions (B or 1, T); zeros where there are none."""
    x = F.pad(x, (0, 0, max(0, positions.shape[1] + steps - x.shape[-2]), 0))
    end = x.shape[-2] - steps
    return x[..., end - positions.shape[1] : end, :] * (positions >= steps)[:, None, :, None]


class ChannelAffine(nn.Module):
    """a ∘ x + b of features (B, H, S, D)."""

    def __init__(self, config):
        super().__init__()
        shape = (config.num_attention_heads, config.head_dim)
        self.scale, self.shift = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.zeros(shape))

    def forward(self, x):
        return x * self.scale[:, None].to(x.dtype) + self.shift[:, None].to(x.dtype)


class ShortConvolution(nn.Module):
    """Σ_t w_t ∘ (x, t positions before), each channel with itself."""

    def __init__(self, width, channels):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, channels))

    def forward(self, x, positions):
        taps = self.weight.to(x.dtype).view(len(self.weight), x.shape[1], 1, -1)
        return sum(tap * before(x, steps, positions) for steps, tap in enumerate(taps))


class ValueEmbedding(nn.Module):
    """A second embedding of each token, let into the values by a gate per head."""

    def __init__(self, config):
        super().__init__()
        self.table, self.most = nn.Embedding(config.vocab_size, config.hidden_size), config.value_gate[1]
        self.gate = nn.Linear(config.value_gate[0], config.num_attention_heads, bias=False)

    def forward(self, ids, x):
        """(B, H, S, D) for the values of tokens (B, S) with activations x (B, H, S, D)."""
        gate = self.most * torch.sigmoid(self.gate(x.transpose(1, 2).flatten(2)[..., : self.gate.in_features]))
        return (gate[..., None] * self.table(ids).to(x.dtype).unflatten(-1, (x.shape[1], -1))).transpose(1, 2)


def eager_attention(module, query, key, value, attention_mask, scaling, **kwargs):
    """Attention that also returns its weights (B, H, T, S)."""
    weights = (query @ key.mT * scaling).masked_fill(~attention_mask, -math.inf).softmax(-1, dtype=torch.float32)
    return (weights.to(value.dtype) @ value).transpose(1, 2), weights
