"""Gaussian Kernel Attention in one file: train, evaluate and sample a small GPT without query, key or value matrices.

    python -m scripts.gka input.txt                    # the file needs nothing but torch: copy it anywhere
    python -m scripts.gka input.txt --steps 1000 --prompt "The "

This is the mixer of "Projection-Free Transformers via Gaussian Kernel Attention" (arXiv 2605.02144) in the network and
with the optimizer that the paper used (nanochat, February 2026). It reads bytes, keeps no cache and runs on one device.
The package does the same faster and at any size: tests/scripts/test_gka.py trains both for 30 steps and compares the
losses.

Shapes: B rows, T positions, C width, H heads, D = C / H features per head.
"""

import argparse
import math
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY = 256  # bytes
HEAD_DIM = 128
CONTEXT = 256  # T
ROWS = 16  # B: 4,096 tokens per step
LR_SCALE = 1.2  # factor of all rates, for short runs with a small batch


# ---- the network ----


def norm(x: Tensor) -> Tensor:
    """RMS norm over the features, without learned parameters."""
    return F.rms_norm(x, x.shape[-1:], eps=torch.finfo(torch.float32).eps)


def rotate(x: Tensor) -> Tensor:
    """Rotary positions: channels i and i + D/2 of x (B, T, H, D) are a pair that turns with the position."""
    T, D = x.shape[1], x.shape[3]
    frequencies = torch.exp(torch.arange(0, D, 2, device=x.device) / D * -math.log(10000.0))
    angles = torch.arange(T, device=x.device)[:, None, None] * frequencies
    first, second = x.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos + second * sin, second * cos - first * sin], dim=-1)


def gaussian_kernel_attention(x: Tensor, sigma: Tensor, window: int) -> Tensor:
    """y_i = Σ_j A_ij x_j for heads x (B, T, H, D), where A is a causal Gaussian kernel whose rows sum to 1.

    z = norm(rotate(x)) are the features that are compared. K_ij = exp(−‖z_i − z_j‖² / 2σ²) for 0 ≤ i − j ≤ window, else
    0, and A_ij = K_ij / Σ_j K_ij. Each head has one learned σ (H,).
    """
    T, D = x.shape[1], x.shape[3]
    z = norm(rotate(x)).transpose(1, 2)  # (B, H, T, D), ‖z‖² = D
    # ‖z_i − z_j‖² = 2D − 2 z_i·z_j: the exponent is a product of features. So the kernel, divided by the sum of its
    # row, is softmax attention whose query and key are z, at temperature σ². Any fused attention kernel computes it.
    exponent = (z @ z.mT - D) / sigma.square()[:, None, None]  # (B, H, T, T)
    distance = torch.arange(T, device=x.device)[:, None] - torch.arange(T, device=x.device)
    exponent = exponent.masked_fill((distance < 0) | (distance > window), -torch.inf)
    # The values are x itself: not rotated, since a mean should not depend on where its terms are.
    return (exponent.softmax(-1) @ x.transpose(1, 2)).transpose(1, 2)


class Attention(nn.Module):
    """The layer: its only matrix is W_O, which starts at zero."""

    def __init__(self, width: int, window: int) -> None:
        super().__init__()
        heads = width // HEAD_DIM
        self.window = window
        # log σ, so that σ stays positive. σ² = √D is the temperature of dot-product attention.
        self.log_bandwidth = nn.Parameter(torch.full((heads,), HEAD_DIM**0.25).log())
        self.c_proj = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (-1, HEAD_DIM))  # a head is a slice of the features
        return self.c_proj(gaussian_kernel_attention(heads, self.log_bandwidth.exp(), self.window).flatten(2))


class MLP(nn.Module):
    """C → 4C → C with the square of ReLU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width, bias=False)
        self.c_proj = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.relu(self.c_fc(x)).square())


class GPT(nn.Module):
    """x0 = norm(embed);  per layer x = λ x + μ x0, x += attention(norm(x)), x += mlp(norm(x));  logits of norm(x)."""

    def __init__(self, depth: int, seed: int) -> None:
        super().__init__()
        width = -(-64 * depth // HEAD_DIM) * HEAD_DIM  # 64 per layer, in whole heads
        # Three layers of four see half of the context, the last one sees all of it.
        windows = [CONTEXT // 2 if layer % 4 < 3 and layer < depth - 1 else CONTEXT for layer in range(depth)]
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.attention = nn.ModuleList(Attention(width, window) for window in windows)
        self.mlp = nn.ModuleList(MLP(width) for _ in range(depth))
        self.lm_head = nn.Linear(width, VOCABULARY, bias=False)
        self.resid_lambdas = nn.Parameter(torch.ones(depth))  # λ: keeps or rescales the stream
        self.x0_lambdas = nn.Parameter(torch.full((depth,), 0.1))  # μ: reads the embedding again
        random, bound = torch.Generator().manual_seed(seed), (3 / width) ** 0.5
        with torch.no_grad():
            self.embedding.weight.normal_(0, 1, generator=random)
            self.lm_head.weight.normal_(0, 0.001, generator=random)  # all bytes about equally likely at first
            for name, parameter in self.named_parameters():
                if name.endswith("c_fc.weight"):
                    parameter.uniform_(-bound, bound, generator=random)
                if name.endswith("c_proj.weight"):
                    parameter.zero_()  # a layer adds nothing at first, so that depth does not amplify the stream

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (B, T, V) of the byte after each of ids (B, T), softly capped to ±15."""
        x = x0 = norm(self.embedding(ids))
        for layer, (attention, mlp) in enumerate(zip(self.attention, self.mlp)):
            x = self.resid_lambdas[layer] * x + self.x0_lambdas[layer] * x0
            x = x + attention(norm(x))
            x = x + mlp(norm(x))
        return 15 * torch.tanh(self.lm_head(norm(x)) / 15)


# ---- the optimizer: Muon for the matrices, AdamW for everything else ----

POLAR_EXPRESS = (  # arXiv 2505.16932
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)


def orthogonalize(update: Tensor) -> Tensor:
    """The semi-orthogonal matrix next to an update: all singular values near 1, so rare directions learn as well."""
    tall = update.shape[0] > update.shape[1]
    x = update.T if tall else update
    x = x / (x.norm() * 1.02 + 1e-6)  # all singular values are now at most 1
    for a, b, c in POLAR_EXPRESS:  # odd polynomials of the singular values that bring them to 1
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonal updates with even neurons (NorMuon, arXiv 2510.05491), and cautious weight decay."""

    def __init__(self, parameters: list, lr: float, weight_decay: float) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": 0.95, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyrefly: ignore[bad-override]  # it has no use for a closure
        """Update the matrices."""
        for group in self.param_groups:
            momentum = group["momentum"]
            for p in group["params"]:
                rows, columns = p.shape
                state = self.state[p]
                if not state:
                    shape = (rows, 1) if rows >= columns else (1, columns)
                    state.update(momentum=torch.zeros_like(p), mean_square=p.new_zeros(shape))
                state["momentum"].lerp_(p.grad, 1 - momentum)
                update = orthogonalize(p.grad.lerp(state["momentum"], momentum))  # Nesterov
                # A neuron whose updates are large on average is slowed down. The norm of the update stays.
                mean_square = update.square().mean(1 if rows >= columns else 0, keepdim=True)
                state["mean_square"].lerp_(mean_square, 0.05)
                even = update * state["mean_square"].clamp_min(1e-10).rsqrt()
                update = even * (update.norm() / even.norm().clamp_min(1e-10))
                rate = group["lr"] * max(1.0, rows / columns) ** 0.5
                # Decay only where the update shrinks the weight anyway.
                decay = torch.where(update * p >= 0, p, 0) * group["weight_decay"]
                p.sub_(rate * (update + decay))


def build_optimizers(model: GPT, depth: int) -> list[torch.optim.Optimizer]:
    """Muon and AdamW at nanochat's rates of February 2026. `schedule` sets the rates of each step."""
    width = (768 / model.embedding.weight.shape[1]) ** 0.5
    matrices = [
        m.weight for layer in (*model.attention, *model.mlp) for m in layer.modules() if isinstance(m, nn.Linear)
    ]
    bandwidths = [attention.log_bandwidth for attention in model.attention]
    groups = [
        {"params": [model.embedding.weight], "lr": 0.3 * width},
        {"params": [model.lm_head.weight], "lr": 0.004 * width},
        # Their first gradients are rounding noise of 1e-10, which a smaller ε would turn into steps of full size.
        {"params": [model.resid_lambdas], "lr": 0.005, "eps": 1e-6},
        {"params": [model.x0_lambdas], "lr": 0.5, "betas": (0.96, 0.95), "eps": 1e-6},
        {"params": bandwidths, "lr": 0.02},
    ]
    adamw = torch.optim.AdamW(groups, betas=(0.8, 0.95), eps=1e-10, weight_decay=0)
    muon = Muon(matrices, lr=0.02, weight_decay=0.2 * (12 / depth) ** 2)
    for optimizer in (adamw, muon):
        for group in optimizer.param_groups:
            group["initial_lr"], group["initial_decay"] = group["lr"] * LR_SCALE, group["weight_decay"]
    return [adamw, muon]


def schedule(optimizers: list[torch.optim.Optimizer], step: int, steps: int) -> None:
    """Full rates for half of the run, then linearly to 0. Momentum rises for 300 steps, decay falls to 0."""
    warmdown = round(steps / 2)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * min(1.0, (steps - step) / warmdown)
            if "momentum" in group:
                group["momentum"] = 0.85 + 0.10 * min(step / 300, 1)
                group["weight_decay"] = group["initial_decay"] * (1 - step / steps)


# ---- training, evaluation, sampling ----


def batch(text: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Inputs and targets (B, T) at random places of the text."""
    starts = torch.randint(len(text) - CONTEXT, (ROWS,), generator=generator)
    rows = torch.stack([text[start : start + CONTEXT + 1] for start in starts]).long()
    return rows[:, :-1], rows[:, 1:]


def loss_of(model: GPT, inputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy in nats."""
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def train(model: GPT, text: Tensor, depth: int, steps: int, seed: int) -> list[float]:
    """Train in place. Returns the loss of every step in nats per byte."""
    device, generator, losses = model.lm_head.weight.device, torch.Generator().manual_seed(seed), []
    optimizers, began = build_optimizers(model, depth), time.perf_counter()
    for step in range(steps):
        inputs, targets = (part.to(device) for part in batch(text, generator))
        schedule(optimizers, step, steps)
        loss = loss_of(model, inputs, targets)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        if step % 20 == 0 or step == steps - 1:
            seconds = time.perf_counter() - began
            print(f"step {step + 1}/{steps}  {losses[-1] / math.log(2):.3f} bits per byte  {seconds:.0f} s", flush=True)
    return losses


@torch.no_grad()
def evaluate(model: GPT, text: Tensor) -> float:
    """Bits per byte of whole rows of held-out text."""
    rows = text[: (len(text) - 1) // CONTEXT * CONTEXT + 1].long().to(model.lm_head.weight.device)
    inputs, targets = rows[:-1].view(-1, CONTEXT), rows[1:].view(-1, CONTEXT)
    losses = [loss_of(model, x, y) * len(x) for x, y in zip(inputs.split(ROWS), targets.split(ROWS))]
    return float(sum(losses) / len(inputs)) / math.log(2)


@torch.no_grad()
def sample(model: GPT, prompt: bytes, count: int, seed: int) -> bytes:
    """The prompt and `count` bytes after it, drawn from the model at temperature 1."""
    ids, generator = list(prompt), torch.Generator().manual_seed(seed)
    for _ in range(count):  # without a cache each byte costs a pass over the context
        logits = model(torch.tensor([ids[-CONTEXT:]], device=model.lm_head.weight.device))[0, -1]
        ids.append(int(torch.multinomial(logits.softmax(-1).cpu(), 1, generator=generator)))
    return bytes(ids)


def main(argv: list[str] | None = None) -> int:
    """Train on a text file, print bits per byte of its last tenth, and a sample."""
    parser = argparse.ArgumentParser(prog="gka", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("text", type=Path, help="text file; its last tenth is held out")
    parser.add_argument("--depth", type=int, default=3, help="number of layers (default: 3)")
    parser.add_argument("--steps", type=int, default=300, help="number of steps of 4,096 bytes (default: 300)")
    parser.add_argument("--seed", type=int, default=1, help="seed of weights, batches and sample (default: 1)")
    parser.add_argument("--prompt", default="\n", help="text to continue (default: a new line)")
    options = parser.parse_args(argv)
    if options.depth < 1 or options.steps < 1 or not options.prompt:
        parser.error("--depth, --steps, --prompt: expected at least 1, 1 and one character")
    if not options.text.is_file() or options.text.stat().st_size < 20 * CONTEXT:
        parser.error(f"text: got {options.text}, expected a file of at least {20 * CONTEXT:,} bytes")
    text = torch.frombuffer(bytearray(options.text.read_bytes()), dtype=torch.uint8)
    held_out, text = text[-(len(text) // 10) :], text[: -(len(text) // 10)]
    model = GPT(options.depth, options.seed).to("cuda" if torch.cuda.is_available() else "cpu")
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(text):,} bytes of training text")
    train(model, text, options.depth, options.steps, options.seed)
    print(f"held out: {evaluate(model, held_out):.3f} bits per byte")
    print(sample(model, options.prompt.encode(), 300, options.seed).decode(errors="replace"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
