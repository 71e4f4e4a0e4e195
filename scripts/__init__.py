"""The command lines. Each module has `main(argv=None)` and is started with `python -m scripts.NAME`."""

import os
import signal
import sys

from nanogka.common.nanochat import refuse_script

# Python imports this file before it looks for the module of `python -m scripts.NAME`.
if sys.argv[:1] == ["-m"]:
    refuse_script(sys.orig_argv)
    # Imports take seconds. Ctrl-C ends them without a traceback, until `run_script` takes over.
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
# Expandable segments fragment CUDA memory less. torch may read the variable on import, and this file runs before the
# imports of any script.
if not os.environ.keys() & {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}:
    os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
# FlashAttention 4, where it is installed, keeps its compiled kernels. Every process would compile them again.
os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")
# Without it torch's compiler traces the whole step again in every start, because the model has an autograd function.
os.environ.setdefault("TORCHINDUCTOR_AUTOGRAD_CACHE_ALLOW_CUSTOM_AUTOGRAD", "1")
