"""Uploading an exported folder: what the hub's library is asked, and what a refusal says."""

from unittest.mock import create_autospec

import huggingface_hub
import pytest

from nanogka.common.errors import Errors
from nanogka.export import check_repository, push_folder


@pytest.fixture
def api(monkeypatch):
    """The library's client, which checks how it is called and sends nothing."""
    made = create_autospec(huggingface_hub.HfApi)
    monkeypatch.setattr(huggingface_hub, "HfApi", made)
    client = made.return_value
    client.endpoint = "https://hub"
    client.create_repo.return_value = huggingface_hub.RepoUrl("https://huggingface.co/somebody/tiny")
    return client


def test_the_folder_becomes_one_commit(api, tmp_path):
    assert push_folder(tmp_path, "somebody/tiny", private=True).endswith("/somebody/tiny")
    api.create_repo.assert_called_once_with("somebody/tiny", private=True, exist_ok=True)
    message = f"Export {tmp_path.name}"
    api.upload_folder.assert_called_once_with(repo_id="somebody/tiny", folder_path=tmp_path, commit_message=message)


def test_a_hub_that_refuses_is_one_line(api, tmp_path):
    api.upload_folder.side_effect = RuntimeError("403:\nno right to write")
    with pytest.raises(OSError, match="somebody/tiny: https://hub: RuntimeError: 403: no right to write"):
        push_folder(tmp_path, "somebody/tiny")


def test_a_name_that_no_repository_can_have_is_named():
    errors = Errors()
    check_repository("somebody/tiny/more", errors)
    check_repository("somebody/tiny", errors)
    assert errors.lines == [
        "--push-to-hub: got 'somebody/tiny/more', expected a repository's name, such as somebody/d20-gaussian"
    ]
