"""Exporting a trained run to the transformers library: a folder that needs nothing of ours. See docs/export.md."""

from nanogka.export.folder import check_folder, export_run
from nanogka.export.hub import check_repository, push_folder
from nanogka.export.library import register_with_transformers

__all__ = ["check_folder", "check_repository", "export_run", "push_folder", "register_with_transformers"]
