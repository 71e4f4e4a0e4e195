"""transformers and the exported network, imported when a test first uses them: the import takes seconds.

A test that uses a name of this module is skipped if transformers is not installed.
"""

import importlib
from typing import Any

import pytest

REMOTE = "nanogka.export.remote_code"
HOMES = {
    "NanogkaConfig": f"{REMOTE}.configuration_nanogka",
    "NanogkaForCausalLM": f"{REMOTE}.modeling_nanogka",
    "NanogkaModel": f"{REMOTE}.modeling_nanogka",
}


def __getattr__(name: str) -> Any:
    transformers = pytest.importorskip("transformers")
    if name == "transformers":
        return transformers
    if name == "modeling_nanogka":
        return importlib.import_module(f"{REMOTE}.modeling_nanogka")
    if name not in HOMES:
        raise AttributeError(name)
    return getattr(importlib.import_module(HOMES[name]), name)
