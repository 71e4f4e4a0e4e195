"""Set-up of all tests, and fixtures that several folders use.

xdist's first process reads this file too and runs no test, so torch is imported in functions.
"""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser

# A shell starts background jobs with SIGINT ignored, nohup with SIGHUP ignored, and children inherit that. Tests send
# these signals to children, so they begin with the default handlers.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, handler)

# Files that share what takes seconds: trained runs and the fork server of `rank_worlds`, or the import of a library.
FORKED = ("common/test_signals", *(f"scripts/test_{name}" for name in ("base_eval", "chat_eval", "launch", "serve")))
GROUPS = {
    "train": ("tests/train/", "tests/attack/", *(f"tests/{name}.py" for name in FORKED)),
    "transformers": ("tests/export/", "tests/evaluate/test_models.py"),
    "openai": tuple(f"tests/serve/test_{name}.py" for name in ("app", "refusals", "tools")),
}


def pytest_collectstart() -> None:
    """Without a GPU, let Triton interpret its kernels. It must be asked before anything imports it."""
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Run all tests of a file, or of a group of files, in one process, which then makes their fixtures once.

    It replaces the marker `xdist_group`, which xdist 3.8 ignores under pytest 9.2.
    """
    from xdist.scheduler import LoadFileScheduling

    class Grouped(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return next((name for name, begins in GROUPS.items() if file.startswith(begins)), file)

    return Grouped(config, log)


@pytest.fixture(scope="session", autouse=True)
def private_folders(tmp_path_factory) -> Iterator[None]:
    """Send what libraries and fixtures of any scope write into the tests' folder, and not into the user's caches."""
    root = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NANOGKA_BASE_DIR", str(root / "nanogka"))
        patch.setenv("HF_HOME", str(root / "huggingface"))
        # Each training collects garbage, which takes half a second where all libraries are loaded. What exists now, or
        # in the first step of a training, stays out of it.
        gc.freeze()
        patch.setattr(gc, "unfreeze", lambda: None)
        yield


@pytest.fixture
def base(tmp_path, monkeypatch) -> Path:
    """The base folder, which does not exist yet."""
    monkeypatch.setenv("NANOGKA_BASE_DIR", str(tmp_path / "base"))
    return tmp_path / "base"


@pytest.fixture(scope="session")
def corpora(tmp_path_factory) -> Path:
    """A folder `corpora` with the embedded corpus in it, built once for all processes of the tests."""
    from nanogka.data import embedded_corpus

    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NANOGKA_BASE_DIR", str(root))
        return embedded_corpus().parent


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A `Browser`; the test is skipped where there is no Chromium."""
    if CHROMIUM is None:
        pytest.skip("no Chromium")
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()
