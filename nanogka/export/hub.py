"""Upload an exported folder to the Hugging Face hub, with the token of `hf auth login` or HF_TOKEN."""

from pathlib import Path

import huggingface_hub
from huggingface_hub.utils import HFValidationError, validate_repo_id

from nanogka.common.errors import Errors, in_one_line


def check_repository(repo: str, errors: Errors) -> None:
    """Record an invalid repository name."""
    try:
        validate_repo_id(repo)
    except HFValidationError:
        errors.require(False, "push_to_hub", repo, "a repository's name, such as somebody/d20-gaussian")


def push_folder(folder: Path, repo: str, private: bool = False) -> str:
    """Upload the files of `folder` in one commit to a model repository and return its address.

    A missing repository is created. An existing one keeps its visibility. Raises OSError if the hub refuses.
    """
    api = huggingface_hub.HfApi()
    try:
        address = api.create_repo(repo, private=private or None, exist_ok=True)
        api.upload_folder(repo_id=address.repo_id, folder_path=folder, commit_message=f"Export {folder.name}")
    except Exception as error:  # the library's HTTP client has changed twice: its errors have no common type
        raise OSError(f"{repo}: {api.endpoint}: {in_one_line(error)}") from error
    return str(address)
