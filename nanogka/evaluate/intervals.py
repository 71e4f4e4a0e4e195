"""95 % intervals of bits per byte, of the paired difference of two models, and of shares of right answers.

The unit of a sample is what was drawn independently: a document of a text, a distinct item of a task. The tokens of a
document are alike, and so are several wordings of one question, so counting them would make the intervals too narrow.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

Document = tuple[float, float]  # (nats, UTF-8 bytes) of one document under a model

LEVEL = 0.95
Z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
FEW_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306)  # quantiles for 1, 2, … degrees of freedom
# The standard error itself is estimated. From fewer documents, and with lengths that differ, it is worth little.
FEWEST_DOCUMENTS = 10


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval; the ends are NaN if the sample is too small to tell."""

    value: float
    low: float
    high: float
    count: int  # independent units in the sample
    error: float = math.nan  # standard error of the value

    @property
    def half(self) -> float:
        """Half the width, for `value ± half`; NaN if the sample is too small."""
        return (self.high - self.low) / 2

    @property
    def excludes_zero(self) -> bool:
        """True if the value differs from 0 beyond chance."""
        return self.low > 0 or self.high < 0


def bits_per_byte_interval(documents: Sequence[Document]) -> Interval:
    """The bits per byte of all documents together, with an interval over documents; see `paired_difference`."""
    ratio, terms = _linearized(documents)
    return _around(ratio, terms)


def paired_difference(one: Sequence[Document], other: Sequence[Document]) -> Interval:
    """Bits per byte of `one` minus those of `other`, with a 95 % interval.

    Each list has (nats, bytes) of the same documents, in the same order, under one of two models. Bits per byte are a
    ratio of sums, Σ nats / (ln 2 · Σ bytes), not a mean over documents, so the interval is that of a ratio estimator.
    By the delta method, document i moves the ratio R by (nats_i − R · bytes_i) / Σ bytes. The differences of these
    terms between the two models are summed, and their spread over documents gives the standard error. Documents that
    are hard for both models cancel, so the interval is much narrower than those of the two values.

    It covers the choice of the documents only: another seed of the training would move both values as well.
    """
    if len(one) != len(other):
        raise ValueError(f"documents: got {len(one)} and {len(other)}, expected the same documents of both models")
    (first, first_terms), (second, second_terms) = _linearized(one), _linearized(other)
    return _around(first - second, [a - b for a, b in zip(first_terms, second_terms)])


def _linearized(documents: Sequence[Document]) -> tuple[float, list[float]]:
    """The bits per byte, and what each document moves them by; these terms sum to 0."""
    total = math.fsum(size for _, size in documents)
    if total <= 0:
        raise ValueError("documents: got no text, expected at least one byte")
    ratio = math.fsum(nats for nats, _ in documents) / total
    terms = [(nats - ratio * size) / (total * math.log(2)) for nats, size in documents]
    return ratio / math.log(2), terms


def _around(value: float, terms: Sequence[float]) -> Interval:
    count = len(terms)
    if count < FEWEST_DOCUMENTS:
        return Interval(value, math.nan, math.nan, count)
    # The variance of a sum of n independent terms, n / (n − 1) because their mean is estimated from them.
    error = math.sqrt(count / (count - 1) * math.fsum(term**2 for term in terms))
    half = student_quantile(count - 1) * error
    return Interval(value, value - half, value + half, count, error)


def student_quantile(freedom: int) -> float:
    """97.5 % quantile of Student's t, right to 0.001.

    From 9 degrees of freedom on, it is the expansion in powers of 1 / freedom of Abramowitz and Stegun, 26.7.5.
    """
    if freedom <= len(FEW_T):
        return FEW_T[freedom - 1]
    z, v = Z, freedom
    terms = (
        z,
        (z**3 + z) / (4 * v),
        (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2),
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3),
    )
    return math.fsum(terms)


def share_interval(share: float, count: int) -> Interval:
    """Wilson's interval of a share in [0, 1] that was measured on `count` independent items.

    Unlike `share ± error` it stays within [0, 1] and has a width at 0 and 1: 300 right answers of 300 do not prove that
    the next is right.
    """
    if count < 1:
        return Interval(share, math.nan, math.nan, count)
    scale = 1 + Z**2 / count
    center = (share + Z**2 / (2 * count)) / scale
    half = Z / scale * math.sqrt(share * (1 - share) / count + (Z / (2 * count)) ** 2)
    return Interval(share, max(0.0, min(share, center - half)), min(1.0, max(share, center + half)), count)
