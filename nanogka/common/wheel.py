"""A step of the wheel's build: copy scripts/, tasks/ and speedrun.sh to nanogka/bundled/.

A checkout has them at its top level. An installation must not, because names such as `scripts` and `tasks` are not ours
alone in site-packages. `nanogka.__main__` finds them at either place.
"""

import shutil
from pathlib import Path

from setuptools.command.build_py import build_py


class BuildPy(build_py):
    """setuptools' own step, which also copies these files; an editable installation finds them in the checkout."""

    def bundled(self) -> dict[str, str]:
        """{target: source}."""
        if self.editable_mode:
            return {}
        files = ["speedrun.sh", "scripts/steps.sh", *Path("scripts").glob("*.py"), *Path("tasks").glob("*.py")]
        return {str(Path(self.build_lib, "nanogka", "bundled", file)): str(file) for file in files}

    def run(self) -> None:
        """Build the package."""
        if not self.editable_mode:
            shutil.rmtree(Path(self.build_lib, "nanogka"), ignore_errors=True)  # modules of an earlier build
        super().run()
        for target, source in self.bundled().items():
            self.mkpath(str(Path(target).parent))
            self.copy_file(source, target)

    def get_source_files(self) -> list[str]:
        """Files that a source distribution needs."""
        return [*super().get_source_files(), *self.bundled().values()]
