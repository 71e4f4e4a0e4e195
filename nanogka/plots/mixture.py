"""The report's section on the components of Gaussian mixture attention."""

import numpy as np

from nanogka.formatting import markdown_table, number
from nanogka.model import mixer_options
from nanogka.runs import Run


def report_components(run: Run) -> list[str]:
    """The report's section on component use at the last step; nothing for a run without components."""
    last = run.train[-1]
    layers = last.get("component_entropy_layers")
    if not layers:
        return []
    declared = mixer_options().get("mixture_components", {}).values()
    K = run.fact("mixture_components") or next((option.default for option in declared), "K")
    rows = []
    for layer, entropies, dead in zip(layers, last["component_entropy"], last["dead_components"]):
        used = [number(float(np.exp(entropy)), 1) for entropy in entropies]
        rows.append([str(layer), ", ".join(used), ", ".join(str(int(count)) for count in dead)])
    return [
        "## Components",
        f"Of {K} Gaussian components a head, over the keys of the last micro-batch. In use: exp of the entropy of the "
        f"mean responsibilities, {K} if all collect alike. Dead: those with less than a hundredth of an even share.",
        markdown_table(["layer", "in use, by head", "dead, by head"], rows),
    ]
