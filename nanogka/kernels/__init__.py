"""Our Triton kernels for CUDA and how they are probed.

Each function does what a function in plain torch does elsewhere, faster. Only `nanogka.backends` imports this package;
without it, torch computes.
"""
