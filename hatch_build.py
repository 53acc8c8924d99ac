"""What the build adds: the commit that an sdist or a wheel is of, and into a wheel the folders beside specbench/.

A wheel has one top-level package, so conf/ and analysis/ go inside of it; specbench finds them in either place.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMMIT = "specbench/commit.txt"


class CustomBuildHook(BuildHookInterface):
    """Runs before each sdist and wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds files to the build. An editable install needs none: it is the checkout."""
        if version == "editable":
            return
        included = build_data["force_include"]
        if self.target_name == "wheel":
            included.update({"conf": "specbench/conf", "analysis": "specbench/analysis"})
        if commit := self._commit():  # a wheel built from an sdist has the sdist's file
            self._scratch = tempfile.TemporaryDirectory()
            file = Path(self._scratch.name) / "commit.txt"
            file.write_text(f"{commit}\n")
            included[str(file)] = COMMIT

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes the file that was added."""
        if scratch := getattr(self, "_scratch", None):
            scratch.cleanup()

    def _commit(self) -> str | None:
        """Of the checkout that is built, with ``-dirty`` behind it where files changed; None outside of one."""
        try:
            self._git("ls-files", "--error-unmatch", "hatch_build.py")  # an sdist may lie inside another's checkout
            dirty = "-dirty" if self._git("status", "--porcelain", "--untracked-files=no") else ""
            return self._git("rev-parse", "HEAD") + dirty
        except (OSError, subprocess.SubprocessError):
            return None

    def _git(self, *arguments: str) -> str:
        command = ["git", "--no-optional-locks", "-C", self.root, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
