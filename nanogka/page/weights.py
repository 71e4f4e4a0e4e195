"""The weights of a model as bytes for the page: matrices rounded to float16 or int8, everything else in float32.

int8 has one float32 scale per row, the row's largest magnitude / 127, so that a row of small weights keeps its digits.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from nanogka.model import GPT
from nanogka.model.layers import Embedding, Linear

KINDS = ("int8", "float16", "float32")
SMALL = 4096  # elements up to which a matrix stays in float32: the gates, which cost nothing


@dataclass(frozen=True)
class Packed:
    """Tensors in one run of bytes: `entries` say where each is and how it is stored."""

    entries: list[dict]  # name, kind, rows, columns, offset and, for int8, offset of the scales
    data: bytes
    rounded: dict[str, Tensor]  # the values that the page computes with, float32


def pack(model: GPT, kind: str) -> Packed:
    """Pack the parameters of `model` and its rotary frequencies, with matrices and tables as `kind` of `KINDS`.

    Raises ValueError for a weight that the kind cannot hold.
    """
    matrices = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, Linear | Embedding)}
    entries, data, rounded = [], bytearray(), {}

    def append(values: np.ndarray) -> int:
        data.extend(b"\0" * (-len(data) % 4))  # the page's arrays of float32 begin at multiples of 4
        data.extend(values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes())
        return len(data) - values.nbytes

    for name, tensor in (model.state_dict() | {"frequencies": model.frequencies}).items():
        values = tensor.detach().float().cpu().numpy()
        rows = np.atleast_2d(values)
        stored = kind if name in matrices and rows.size > SMALL else "float32"
        entry = {"name": name, "kind": stored, "rows": rows.shape[0], "columns": rows.shape[1]}
        if stored == "int8":
            scales = np.abs(rows).max(1) / np.float32(127)
            scales[scales == 0] = 1
            whole = np.rint(rows / scales[:, None]).astype(np.int8)
            entry |= {"scales": append(scales), "offset": append(whole)}
            rows = whole * scales[:, None]
        else:
            with np.errstate(over="ignore"):
                small = rows.astype(stored)
            if not np.isfinite(small).all():
                raise ValueError(f"weights: {name} has a value that {stored} cannot hold; expected another of {KINDS}")
            entry["offset"] = append(small)
            rows = small.astype(np.float32)
        entries.append(entry)
        rounded[name] = torch.from_numpy(rows.reshape(values.shape))
    return Packed(entries, bytes(data), rounded)


def with_rounded_weights(model: GPT, packed: Packed) -> GPT:
    """The model that the page computes: a copy of `model` with rounded weights."""
    copy = GPT(replace(model.config))
    copy.load_state_dict({name: value for name, value in packed.rounded.items() if name != "frequencies"})
    return copy.eval()
