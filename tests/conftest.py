"""Without a GPU the Triton kernels run in its interpreter, which must be asked for before anything imports Triton."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
