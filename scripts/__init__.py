"""The command lines. Each module has `main(argv=None)` and is started with `python -m scripts.NAME`."""

import os

# CUDA memory in segments that grow fragments less. torch may read the variable while it is imported, so the package of
# all commands sets it: this file runs before their own imports.
if not os.environ.keys() & {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}:
    os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
