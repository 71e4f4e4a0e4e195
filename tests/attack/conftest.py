"""One world for all campaigns, restored for each test."""

import shutil
from types import SimpleNamespace

import pytest
import torch
from attack_world import build

from nanogka.train import costs


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    """A base folder that is never changed."""
    base = tmp_path_factory.mktemp("world") / "base"
    base.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NANOGKA_BASE_DIR", str(base))
        patch.setattr(costs, "measure_matmul", lambda *_: 1e12)
        build(base)
    return base.rename(base.with_name("template"))


@pytest.fixture
def world(template, monkeypatch):
    """`world.base` is the base folder; `world.restore()` makes it as it was built."""
    base = template.with_name("base")
    threads = torch.get_num_threads()
    monkeypatch.setenv("NANOGKA_BASE_DIR", str(base))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(costs, "measure_matmul", lambda *_: 1e12)
    torch.set_num_threads(1)  # as in the processes that are killed: another number rounds differently

    def restore():
        shutil.rmtree(base, ignore_errors=True)
        shutil.copytree(template, base)

    restore()
    yield SimpleNamespace(base=base, restore=restore)
    torch.set_num_threads(threads)
