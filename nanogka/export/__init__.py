"""Export a trained run as a self-contained folder of the transformers library. See docs/export.md."""

from nanogka.data.tool_calls import CALCULATOR, read_reply
from nanogka.export.folder import check_folder, export_run
from nanogka.export.hub import check_repository, push_folder
from nanogka.export.register import register_with_transformers

__all__ = [
    "CALCULATOR",
    "check_folder",
    "check_repository",
    "export_run",
    "push_folder",
    "read_reply",
    "register_with_transformers",
]
