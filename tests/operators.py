"""Measures of differentiable operators: what they compute, and the memory that they take."""

import numpy as np
import torch


def value_and_gradients(function, leaves, *arguments, **options):
    """Output of `function` and the gradients of the leaves (one that occurs twice has one), for a fixed direction."""
    y = function(*leaves, *arguments, **options)
    weight = torch.cos(torch.arange(y.numel(), device=y.device)).to(y).view_as(y)
    return [y.detach(), *torch.autograd.grad(y, list(dict.fromkeys(leaves)), weight)]


def peak_bytes(function):
    """Most memory held at once while `function` runs, above what was held before, and the largest allocation."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    sizes = [e.nbytes() for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    return np.cumsum(sizes).max(), max(sizes)
