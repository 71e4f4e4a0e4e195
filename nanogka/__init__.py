"""nanogka: GPT pretraining with Gaussian Kernel Attention."""

__version__ = "0.1.0"
