"""A process among several."""

import pytest
import torch

from nanogka.common.distributed import Ranks


def test_each_rank_has_the_gpu_of_its_number_on_its_node():
    assert Ranks(11, 3, 16).device(torch.device("cuda")) == torch.device("cuda", 3)
    assert Ranks().device(torch.device("cuda", 1)) == torch.device("cuda", 1)


@pytest.mark.parametrize("device", ["cuda:1", "mps"])
def test_ranks_do_not_share_a_gpu(device):
    with pytest.raises(ValueError, match="^--device: got"):
        Ranks(0, 0, 8).device(torch.device(device))


@pytest.mark.parametrize(
    "given", [{"RANK": "0", "WORLD_SIZE": "1"}, {"RANK": "x", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}]
)
def test_half_a_description_of_the_ranks_is_an_error(given, monkeypatch):
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert Ranks.from_environment() == Ranks()
    for name, value in (given | {"WORLD_SIZE": "1"}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="^RANK: got"):
        Ranks.from_environment()
