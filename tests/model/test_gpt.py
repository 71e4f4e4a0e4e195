"""The network: its mathematics against a float64 rewrite, its conventions, its initial values."""

import math

import pytest
import torch
import torch.nn.functional as F

from nanogka.attention.rotary import rotary_cos_sin, rotary_frequencies
from nanogka.model import GPT, GPTConfig
from nanogka.model.layers import TokenContext

SHAPE = {"n_head": 2, "n_embd": 64, "vocab_size": 97, "sequence_len": 24}


def model_of(pattern="G", layers=4, dtype=torch.float64, **changes):
    """A small model whose every parameter is random: the zeros of the initial values would hide errors."""
    config = GPTConfig.from_dict({"n_layer": layers, "mixer_pattern": pattern} | SHAPE | changes)
    model = GPT(config, compute_dtype=dtype).to(dtype)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            p.add_(noise.to(dtype) * (0.3 if p.ndim < 2 else 0.1))
            assert torch.isfinite(p).all(), name
    return model


def ids_of(rows, length):
    return torch.randint(97, (rows, length), generator=torch.Generator().manual_seed(length))


def plain_norm(x):
    return x / (x.square().mean(-1, keepdim=True) + torch.finfo(torch.float32).eps).sqrt()


def plain_rope(x, base=10000.0):
    """Rotary by complex numbers: pair (i, i + D/2) is one complex number, turned by −position · frequency."""
    D = x.shape[-1]
    pairs = torch.complex(x[..., : D // 2], x[..., D // 2 :])
    frequency = base ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
    angle = torch.arange(x.shape[1], dtype=torch.float64)[:, None, None] * frequency
    turned = pairs * torch.polar(torch.ones_like(angle), -angle)
    return torch.cat([turned.real, turned.imag], -1)


def plain_convolution(weight, x):
    """x (B, T, H, D): position i becomes Σ_t w_t ∘ x_{i − t}, position by position."""
    taps = weight.view(len(weight), *x.shape[2:])
    rows = [sum(taps[t] * x[:, i - t] for t in range(min(len(taps), i + 1))) for i in range(x.shape[1])]
    return torch.stack(rows, dim=1)


def kernel_parts(h, at, P, config, mixer):
    """Distances (B, H, T, T), bandwidths and values of the Gaussian kernel's mixers."""
    x = q = k = h.view(*h.shape[:2], config.n_head, config.head_dim)
    if mixer.name == "successor" and config.option("qk_affine", mixer):
        q, k = (x * P[at + f"affine_{n}.scale"] + P[at + f"affine_{n}.shift"] for n in "qk")
    q, k = (plain_norm(plain_rope(t, 1e5 if config.network == "july" else 1e4)) for t in (q, k))
    if mixer.name == "successor" and config.option("successor_keys", mixer):
        k = torch.cat([k[:, :1], k[:, :-1]], dim=1)
    squares = torch.einsum("bihd,bihd->bhi", q, q)[..., None] + torch.einsum("bjhd,bjhd->bhj", k, k)[..., None, :]
    return squares - 2 * torch.einsum("bihd,bjhd->bhij", q, k), P[at + "log_bandwidth"].exp()[:, None, None], x


def plain_forward(model, ids):
    """The paper's mixer and nanochat's networks (685271d, 92d63d4), written out with T×T matrices."""
    config, P = model.config, dict(model.named_parameters())
    july = config.network == "july"
    short_window = math.ceil(config.sequence_len / 4 / 128) * 128 if july else config.sequence_len // 2
    B, T = ids.shape
    L, H, D = config.n_layer, config.n_head, config.head_dim
    i, j = torch.arange(T)[:, None], torch.arange(T)[None, :]
    x = x0 = plain_norm(P["embedding.weight"][ids])
    if july:
        gate = torch.sigmoid(x0[..., :24] @ P["smear_gate.weight"].T)
        x = x0 = x0 + P["smear_lambda"] * gate * F.pad(x0[:, :-1], (0, 0, 1, 0))
    elif config.has_smear:
        x = x0 = x0 + P["smear"] * F.pad(x0[:, :-1], (0, 0, 1, 0))
    for layer in range(L):
        short = config.window_pattern[layer % len(config.window_pattern)] == "S" and layer < L - 1
        mask = (j <= i) & (i - j <= (short_window if short else T))
        at = f"blocks.{layer}."
        x = P["resid_lambdas"][layer] * x + P["x0_lambdas"][layer] * x0
        h = plain_norm(x)
        mixer = config.mixers()[layer]
        if mixer.name in ("gaussian", "successor"):
            distance, sigma, v = kernel_parts(h, at + "mixer.", P, config, mixer)
            logits = -distance / (2 * sigma**2)
        else:
            q, k = (F.linear(h, P[at + f"mixer.c_{n}.weight"]).view(B, T, H, D) for n in "qk")
            v = (h if mixer.name == "value_less" else F.linear(h, P[at + "mixer.c_v.weight"])).view(B, T, H, D)
            if config.options.get("short_conv"):
                taps = (P[at + f"mixer.conv_{n}.weight"] for n in "qkv")
                q, k, v = (plain_convolution(w, x_) for w, x_ in zip(taps, (q, k, v)))
            if config.option("qk_affine", mixer):
                scales = ((P[at + f"mixer.affine_{n}.scale"], P[at + f"mixer.affine_{n}.shift"]) for n in "qk")
                q, k = (t * a + b for t, (a, b) in zip((q, k), scales))
            q, k = (plain_norm(plain_rope(t, 1e5 if july else 1e4)) * (1.2 if july else 1.0) for t in (q, k))
            if config.option("successor_keys", mixer):
                k = torch.cat([k[:, :1], k[:, :-1]], dim=1)
            logits = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(D)
            if config.option("learned_temperature", mixer):
                q, k = q / (1.2 if july else 1.0), k / (1.2 if july else 1.0)
                temperature = P[at + "mixer.log_bandwidth"].exp() ** 2
                logits = torch.einsum("bihd,bjhd->bhij", q, k) / temperature[:, None, None]
        embedded = "value_embeddings" in mixer.options and config.option("value_embeddings", mixer)
        if embedded and layer % 2 == (L - 1) % 2:
            features, most = (12, 3) if july else (32, 2)
            gate = most * torch.sigmoid(h[..., :features] @ P[at + "mixer.value_embedding.gate.weight"].T)
            v = v + gate[..., None] * P[at + "mixer.value_embedding.table.weight"][ids].view(B, T, H, D)
        weights = logits.masked_fill(~mask, -torch.inf).softmax(-1)
        y = torch.einsum("bhij,bjhd->bihd", weights, v).reshape(B, T, H * D)
        x = x + F.linear(y, P[at + "mixer.c_proj.weight"])
        h = F.linear(plain_norm(x), P[at + "mlp.c_fc.weight"]).clamp_min(0) ** 2
        x = x + F.linear(h, P[at + "mlp.c_proj.weight"])
        if layer == L // 2:
            middle = x
    x = x - P["backout_lambda"] * middle if july else x
    logits = F.linear(plain_norm(x), P["lm_head.weight"])
    return 15 * torch.tanh(logits / 15)


VARIANTS = {
    "G": {},
    "S": {},
    "GDV": {},
    "S, keys alone": {"qk_affine": False, "value_embeddings": False, "smear": False},
    "S, without its keys": {"successor_keys": False},
    "GDV, convolution": {"short_conv": 3},
    "DV, value embeddings off": {"value_embeddings": False},
    "GSDV, all": {"value_embeddings": True, "short_conv": 3, "smear": True},
    "D, july": {"network": "july", "sequence_len": 300, "qk_affine": True},
    "DV, shifted keys, temperature": {"successor_keys": True, "qk_affine": True, "learned_temperature": True},
    "GSVD, july": {"network": "july", "n_layer": 5, "sequence_len": 300},
}


@pytest.mark.parametrize("T", [1, 24])
@pytest.mark.parametrize("variant", VARIANTS)
def test_forward_and_gradients_are_the_mathematics_written_out(variant, T):
    model = model_of(variant.split(",")[0], **VARIANTS[variant])
    ids = ids_of(2, T if T == 1 or "july" not in variant else 150)  # longer than the window
    ours, plain = model(ids).double(), plain_forward(model, ids)
    with torch.no_grad():  # norms and rotations have another form without gradients
        torch.testing.assert_close(model(ids).double(), plain, rtol=0, atol=1e-4)
    torch.testing.assert_close(ours, plain, rtol=0, atol=1e-4)  # rotations are float32
    with torch.no_grad():
        torch.testing.assert_close(model(ids).double(), plain, rtol=0, atol=1e-4)
    parameters = dict(model.named_parameters())
    direction = torch.randn(plain.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ours, plain = (
        torch.autograd.grad((logits * direction).sum(), list(parameters.values()), allow_unused=True)
        for logits in (ours, plain)
    )
    for name, a, b in zip(parameters, ours, plain, strict=True):
        a, b = (torch.zeros_like(parameters[name]) if g is None else g for g in (a, b))
        assert (a - b).norm() <= 2e-4 * b.norm() + 1e-5, name


def test_losses_are_the_cross_entropy_of_the_logits():
    model, ids = model_of("GD", dtype=torch.float32), ids_of(3, 11)
    targets = ids.roll(-1, 1)
    targets[1, 4:] = -1
    expected = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="none")
    torch.testing.assert_close(model(ids, targets, reduction="none").flatten(), expected)
    torch.testing.assert_close(model(ids, targets), expected.sum() / (targets >= 0).sum())


@pytest.mark.parametrize("attention", ["gaussian", "dot_product"])
@pytest.mark.parametrize(
    "network, spread, fc, lambdas",
    [
        ("february", 1.0, 1.0, ([1.0] * 4, [0.1] * 4)),
        ("july", 0.8, 0.4, ([1.15, 1.15 - 0.1 / 3, 1.15 - 0.2 / 3, 1.05], [0.2, 0.15, 0.1, 0.05])),
    ],
)
def test_initial_values_are_nanochats_and_the_seeds(attention, network, spread, fc, lambdas):
    config = GPTConfig.from_depth(4, attention, vocab_size=2000, sequence_len=32, network=network)
    model, same, other = (GPT(config, seed=seed) for seed in (3, 3, 4))
    assert model.embedding.weight.std().item() == pytest.approx(spread, rel=0.02)
    assert model.lm_head.weight.std().item() == pytest.approx(0.001, rel=0.02)
    assert torch.allclose(torch.stack([model.resid_lambdas, model.x0_lambdas]), torch.tensor(lambdas))
    if network == "july":
        assert (model.smear_lambda.item(), model.backout_lambda.item()) == (0, pytest.approx(0.2))
    for name, p in model.blocks.named_parameters():
        if name.endswith("gate.weight") and network == "july":
            assert 0 <= p.min() < 0.01 < p.max() <= 0.02, name
        elif name.endswith(("c_proj.weight", "gate.weight")):
            assert (p == 0).all(), name
        elif name.endswith("log_bandwidth"):
            torch.testing.assert_close(p.exp() ** 2, torch.full_like(p, math.sqrt(128)))
        else:
            std = config.n_embd**-0.5 * (fc if "c_fc" in name else 1)
            assert p.std().item() == pytest.approx(std, rel=0.03), name
            assert p.abs().max() <= std * math.sqrt(3), name
            assert torch.equal(p, same.blocks.get_parameter(name))
            assert not torch.equal(p, other.blocks.get_parameter(name))
    ids = torch.arange(32)[None]
    assert model(ids, ids).item() == pytest.approx(math.log(2000), abs=0.05)


def test_conversion_rounds_matrices_and_tables_and_nothing_else():
    config = GPTConfig(n_layer=6, mixer_pattern="GSDM", smear=True, **SHAPE)
    model = GPT(config).to_compute(torch.bfloat16)
    rounded = {name for name, p in model.named_parameters() if p.dtype == torch.bfloat16}
    assert {name for name, _ in model.named_parameters() if name.endswith(".weight")} == rounded
    kept = {"log_bandwidth", "scale", "shift", "means", "log_precisions", "log_weights", "smear", "x0_lambdas"}
    assert kept <= {name.rpartition(".")[2] for name, p in model.named_parameters() if p.dtype == torch.float32}
    assert model.cos.dtype == model.frequencies.dtype == torch.float32
    assert GPT(GPTConfig(n_layer=2, **SHAPE)).to(torch.bfloat16).cos.dtype == torch.float32


def test_compiled_training_gives_one_graph_and_the_same_gradients():
    model, ids = model_of("GMDS", dtype=torch.float32, network="july"), ids_of(2, 24)
    expected = torch.autograd.grad(model(ids, ids), list(model.parameters()))
    compiled = torch.compile(model, fullgraph=True, dynamic=False, backend="aot_eager")
    actual = torch.autograd.grad(compiled(ids, ids), list(model.parameters()))
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-6)


def test_a_sequence_longer_than_the_context_is_refused():
    with pytest.raises(ValueError, match=r"ids: got 25 positions"):
        model_of()(torch.zeros(1, 25, dtype=torch.int64))


@pytest.mark.parametrize("network", ["february", "july"])
def test_a_learned_temperature_starts_as_the_fixed_one(network):
    """Scores q·k / τ before the first step are those of the same weights without the option."""
    ids, temperatures = torch.arange(12).view(1, 12), []
    for learned in (False, True):
        options = {"learned_temperature": learned, "vocab_size": 16, "sequence_len": 12, "network": network}
        mixer = GPT(GPTConfig.from_depth(3, "dot_product", **options), seed=1).blocks[0].mixer
        x = torch.randn(1, 12, mixer.config.n_embd, generator=torch.Generator().manual_seed(0))
        cos_sin = rotary_cos_sin(torch.arange(12), rotary_frequencies(mixer.head_dim, 1e4))
        temperatures.append(mixer.attention_inputs(x, TokenContext(ids, cos_sin)).temperature)
    expected = torch.full((2,), 128**0.5 / (1.44 if network == "july" else 1.0))
    torch.testing.assert_close(temperatures, [expected, expected])
