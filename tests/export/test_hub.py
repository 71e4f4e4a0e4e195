"""Uploading an exported folder: what the hub's library is asked, and what a refusal says."""

from unittest.mock import create_autospec

import huggingface_hub
import pytest

from nanogka.export import push_folder


@pytest.fixture
def api(monkeypatch):
    """The library's client, which checks how it is called and sends nothing."""
    made = create_autospec(huggingface_hub.HfApi)
    monkeypatch.setattr(huggingface_hub, "HfApi", made)
    client = made.return_value
    client.endpoint = "https://hub"
    client.create_repo.return_value = huggingface_hub.RepoUrl("https://huggingface.co/somebody/tiny")
    return client


def test_a_hub_that_refuses_is_one_line(api, tmp_path):
    api.upload_folder.side_effect = RuntimeError("403:\nno right to write")
    with pytest.raises(OSError, match="somebody/tiny: https://hub: RuntimeError: 403: no right to write"):
        push_folder(tmp_path, "somebody/tiny")
