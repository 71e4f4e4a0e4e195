"""The optimizer of each nanochat snapshot: one line per parameter group, with its rate, betas and weight decay.

The rates were found at a batch of 2^19 tokens, those of tables and head also at width 768. Two factors carry them over:

* `batch` = √(tokens per step / 2^19). A larger batch averages more, so its gradient has less noise. An optimizer that
  divides by the gradient's size, as Adam and Muon do, may then take steps longer by the square root (arXiv 2205.10287).
* `width` = √(768 / C). Each logit is a sum of C products: in a wider model the same step moves it further.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from nanogka.common.cli import flag
from nanogka.common.validate import MAX_INTEGER

Rates = TypeVar("Rates", bound="LearningRates")

# Where the constants come from: nanochat tuned its rates at depth 12, whose width is 768, with a batch of 2^19 tokens,
# and uses them at all depths. The rates of `vector` and `bandwidth` are ours, from docs/research/log.md.
REFERENCE_WIDTH = 768
SMEAR_LR = 0.2  # of a gated smear, whatever the batch
# Beyond these bounds the products of rates and factors, which the updates use as float32, could overflow.
MAX_RATE, MAX_FACTOR = 1e24, 1e6
# Settings that depend on the snapshot where no flag says otherwise.
FEBRUARY_DEFAULTS = {
    "unembedding_lr": 0.004,
    "weight_decay": 0.2,  # of the matrices, at depth 12
    "warmup_steps": 0,
    "warmdown_ratio": 0.5,
    "final_lr_frac": 0.0,
}
JULY_DEFAULTS = {
    "unembedding_lr": 0.008,
    "weight_decay": 0.28,
    "warmup_steps": 40,
    "warmdown_ratio": 0.65,
    "final_lr_frac": 0.05,
}


def network_flag(name: str, help: str, le: float) -> Any:
    """A flag whose default is the network's: None until `LearningRates.for_network`."""
    defaults = f"february {FEBRUARY_DEFAULTS[name]:g}, july {JULY_DEFAULTS[name]:g}"
    return flag(None, f"{help} (default: {defaults})", ge=0, le=le, affects="losses")


def rate_flag(default: float, help: str) -> Any:
    """A flag of a learning rate."""
    return flag(default, f"learning rate of {help}", ge=0, le=MAX_RATE, affects="losses")


@dataclass(frozen=True)
class LearningRates:
    """Learning rates. The tables below multiply them. A setting of the network is None until `for_network`."""

    # Muon moves every singular direction of a matrix by its rate, whatever the gradient's size, so one rate fits all
    # matrices. AdamW moves every number by its rate: a table's row, which few tokens touch, may move far at each.
    matrix_lr: float = rate_flag(0.02, "matrices (Muon)")
    embedding_lr: float = rate_flag(0.3, "embeddings (AdamW), at width 768")
    unembedding_lr: float = network_flag("unembedding_lr", "learning rate of lm_head (AdamW), at width 768", MAX_RATE)
    scalar_lr: float = rate_flag(0.5, "x0_lambdas (μ); a hundredth for resid_lambdas (λ) (AdamW)")
    vector_lr: float = rate_flag(0.03, "the smear, convolutions and other vectors (AdamW)")
    bandwidth_lr: float = rate_flag(0.02, "log σ (AdamW)")
    # nanochat's rate. With batches of 4,096 tokens λ_b wanders at it, and the loss jumps (docs/research/study.md, 4.1).
    backout_lr: float = rate_flag(0.2, "the share λ_b of july's backout (AdamW), which --lr-scale leaves alone")
    weight_decay: float = network_flag(
        "weight_decay", "weight decay of the matrices at depth 12, less if deeper; falls to 0 over the run", MAX_FACTOR
    )
    lr_scale: float | None = flag(
        None,
        "factor of all learning rates but those of july's smear and backout (default: √(tokens per step / 2^19))",
        ge=0,
        le=MAX_FACTOR,
        affects="losses",
    )
    warmup_steps: int = network_flag("warmup_steps", "number of warm-up steps of the learning rates", MAX_INTEGER)
    warmdown_ratio: float = network_flag(
        "warmdown_ratio", "fraction of the steps, at the end, with falling learning rates", 1
    )
    final_lr_frac: float = network_flag("final_lr_frac", "final learning rates, as a fraction of their maximum", 1)

    def for_network(self: Rates, network: str) -> Rates:
        """The settings with the network's defaults where they are None."""
        return replace(self, **missing_defaults(vars(self), network))


def missing_defaults(settings: Mapping[str, object], network: str) -> dict[str, float]:
    """The network's defaults of those settings that are None or absent; none for an unknown network."""
    defaults = OPTIMIZER_SNAPSHOTS[network].defaults if network in OPTIMIZER_SNAPSHOTS else {}
    return {name: value for name, value in defaults.items() if settings.get(name) is None}


# Why Muon for the matrices and AdamW elsewhere: the gradient of a layer's matrix has a few large singular values, whose
# directions would drown all others, and Muon lets all count the same. A table is no such map: each of its rows is the
# vector of one token, and a batch holds few of the tokens. A vector or a number has no singular directions.


def adamw(lr: float, betas: tuple[float, float] = (0.8, 0.95), weight_decay: float = 0.0, eps: float = 1e-10) -> dict:
    """A group of AdamW. nanochat's averages are short, 5 and 20 steps: Muon changes the matrices quickly."""
    # ε is far below the root mean square of any gradient: lm_head starts near zero, and rows of rare tokens see tiny
    # ones. A larger ε would keep these from moving at the full rate.
    return {"lr": lr, "betas": betas, "weight_decay": weight_decay, "eps": eps}


# At the first step the blocks add nothing and the last norm removes any scale, so the gradients of λ and μ are rounding
# noise of about 1e-10; later they are about 1e-2. A smaller ε would make a step of full size out of the noise, as
# nanochat's does.
SCALAR_EPS = 1e-6


def muon(lr: float, weight_decay: float) -> dict:
    """A group of Muon; the `Schedule` sets its momentum and lets its decay fall to zero."""
    return {"lr": lr, "weight_decay": weight_decay, "initial_weight_decay": weight_decay}


def february_groups(lr: LearningRates, width: float, batch: float, decay: float) -> dict[str, dict]:
    """Parameter groups of nanochat in February 2026, by name. `decay` is that of the matrices."""
    return {
        "matrix": muon(lr.matrix_lr * batch, weight_decay=decay),
        "embedding": adamw(lr.embedding_lr * width * batch),
        "value_embedding": adamw(lr.embedding_lr * width * batch),
        "lm_head": adamw(lr.unembedding_lr * width * batch),
        # λ multiplies the residual stream in every layer, so its changes compound: a hundredth of the rate.
        "resid_lambdas": adamw(0.01 * lr.scalar_lr * batch, eps=SCALAR_EPS),
        # One number whose gradient is a noisy sum over all tokens, at the largest rate of all: average 25 steps.
        "x0_lambdas": adamw(lr.scalar_lr * batch, betas=(0.96, 0.95), eps=SCALAR_EPS),
        "vector": adamw(lr.vector_lr * batch),
        "bandwidth": adamw(lr.bandwidth_lr * batch),
        # What February lacks, where an option adds it.
        "smear_gate": adamw(SMEAR_LR),
        "smear_lambda": adamw(SMEAR_LR),
    }


def july_groups(lr: LearningRates, width: float, batch: float, decay: float) -> dict[str, dict]:
    """Parameter groups of nanochat in July 2026, by name. Tables average squares longer: most rows are rarely seen."""
    return {
        "matrix": muon(lr.matrix_lr * batch, weight_decay=decay),
        "embedding": adamw(lr.embedding_lr * width * batch, betas=(0.8, 0.995), weight_decay=0.001),
        "value_embedding": adamw(0.5 * lr.embedding_lr * width * batch, betas=(0.8, 0.995), weight_decay=0.01),
        "lm_head": adamw(lr.unembedding_lr * width * batch, betas=(0.8, 0.96), weight_decay=0.01),
        "resid_lambdas": adamw(0.01 * lr.scalar_lr * batch, weight_decay=0.05, eps=SCALAR_EPS),
        "x0_lambdas": adamw(lr.scalar_lr * batch, betas=(0.96, 0.95), eps=SCALAR_EPS),
        "vector": adamw(lr.vector_lr * batch),
        "bandwidth": adamw(lr.bandwidth_lr * batch),
        "smear_gate": adamw(SMEAR_LR),
        "smear_lambda": adamw(SMEAR_LR),
        "backout_lambda": adamw(lr.backout_lr),
    }


@dataclass(frozen=True)
class OptimizerSnapshot:
    """Optimizer and schedule of a nanochat snapshot."""

    defaults: Mapping[str, float]
    groups: Callable[[LearningRates, float, float, float], dict[str, dict]]
    beta2: float  # of Muon's variance reduction
    muon_eq: bool  # MuonEq and Muon+: even rows before the orthogonalization, an exact norm after it
    momentum: tuple[float, float, float]  # of Muon: at first, after `momentum_steps`, at the end of the warm-down
    momentum_steps: int
    # True: the decay of the matrices falls as a cosine, from its value at depth 12 × √(batch / 2^19) / (scaling
    # parameters / depth 12's), after λ ∝ √batch / tokens (arXiv 2405.13698). False: linearly, from × (12 / depth)².
    cosine_decay: bool


FEBRUARY = OptimizerSnapshot(FEBRUARY_DEFAULTS, february_groups, 0.95, False, (0.85, 0.95, 0.95), 300, False)
JULY = OptimizerSnapshot(JULY_DEFAULTS, july_groups, 0.9, True, (0.85, 0.97, 0.90), 400, True)
OPTIMIZER_SNAPSHOTS = {"february": FEBRUARY, "july": JULY}
