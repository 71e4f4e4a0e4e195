"""Code that is not plain torch: Triton for CUDA, C++ for CPUs, and how it is built, loaded and probed.

Each function does what a function in plain torch does elsewhere, faster. `nanogka.dispatch` alone imports this package;
without it, torch computes.
"""
