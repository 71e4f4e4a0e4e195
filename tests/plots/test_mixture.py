"""The report's section on the components of a mixture."""

import numpy as np

from nanogka.plots.mixture import report_components
from nanogka.runs import Run


def test_the_report_names_dead_components(tmp_path):
    line = {"kind": "train", "step": 1, "component_entropy_layers": [2], "component_entropy": [[np.log(4.0), 0.0]]}
    run = Run(tmp_path, {"model": {"mixture_components": 8}})
    run.__dict__["train"] = [line | {"dead_components": [[0, 7]]}]
    assert "| 2 | 4.0, 1.0 | 0, 7 |" in report_components(run)[-1]
    run.__dict__["train"] = [{"kind": "train", "step": 1, "component_entropy_layers": []}]
    assert report_components(run) == []
