"""Our Triton kernel of the loss for CUDA and how it is probed.

It does what a function in plain torch does elsewhere, faster. Only `nanogka.backends` imports this package. Without it,
torch computes.
"""
