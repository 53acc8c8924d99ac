"""Caches that other libraries keep in the home folder, where that cannot be written (batch systems, containers).

Triton would fail there, and matplotlib warn in two long lines. Caches of models are not touched: ``pair.download=true``
needs a home folder, or HF_HOME.
"""

from __future__ import annotations

import os

# The variable that moves a cache, those that would move it as well, and its folder in the home folder.
CACHES = (
    ("TRITON_CACHE_DIR", ("TRITON_HOME",), ".triton"),
    ("MPLCONFIGDIR", ("XDG_CACHE_HOME",), ".cache"),
    ("MPLCONFIGDIR", ("XDG_CONFIG_HOME",), ".config"),
)


def use_temporary_home() -> None:
    """Gives each library whose cache cannot be written a temporary folder, which goes when this process ends."""
    for variable, others, folder in CACHES:
        if not any(os.environ.get(each) for each in (variable, *others)) and not _writable(folder):
            import atexit  # here: most processes need none of these
            import shutil
            import tempfile

            try:
                place = tempfile.mkdtemp(
                    prefix="specbench-cache-"
                )  # this user's alone: Triton runs what it finds there
            except OSError:  # no temporary folder either: the library that needs it says so
                return
            atexit.register(shutil.rmtree, place, ignore_errors=True)
            os.environ[variable] = place


def _writable(folder: str) -> bool:
    """Whether a folder of the home folder can be written, or made."""
    home = os.path.expanduser("~")
    place = os.path.join(home, folder)
    if not os.path.exists(place):
        place = home
    return os.path.isdir(place) and os.access(place, os.W_OK | os.X_OK)
