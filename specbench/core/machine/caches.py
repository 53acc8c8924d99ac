"""Caches that other libraries keep outside of a run's folder: none is begun, and none is needed.

Triton would fail if the home folder cannot be written (batch systems, containers). matplotlib would begin a list of
fonts there, which takes it a third of a second to make. PyTorch leaves an empty folder behind. Caches of models are not
touched: ``pair.download=true`` needs a home folder, or HF_HOME.
"""

import os
from contextlib import suppress

# The variable that moves a cache, other variables that would move it, its folder in the home folder, and whether that
# is used only if it is there.
CACHES = (
    ("TRITON_CACHE_DIR", ("TRITON_HOME",), ".triton", False),
    ("MPLCONFIGDIR", ("XDG_CACHE_HOME",), ".cache/matplotlib", True),
    ("MPLCONFIGDIR", ("XDG_CONFIG_HOME",), ".config/matplotlib", True),
)
OF_PYTORCH = "TORCHINDUCTOR_CACHE_DIR"  # PyTorch sets it to a folder that it makes when it is imported


def keep_outside_clean() -> None:
    """Gives each library that cannot write its cache, or would begin one, a temporary folder, which goes when this
    process ends; so does PyTorch's, if it is empty."""
    import atexit

    for variable, others, folder, only_if_there in CACHES:
        if any(os.environ.get(name) for name in (variable, *others)) or _used(folder, only_if_there):
            continue
        import shutil  # here: most processes need neither
        import tempfile

        try:
            place = tempfile.mkdtemp(prefix="specbench-cache-")  # this user's alone: Triton runs what it finds there
        except OSError:  # no temporary folder either: the library that needs it says so
            return
        atexit.register(shutil.rmtree, place, ignore_errors=True)
        os.environ[variable] = place
    if not os.environ.get(OF_PYTORCH):
        atexit.register(_remove_empty)


def _used(folder: str, only_if_there: bool) -> bool:
    """Whether a folder of the home folder can be written, or made if it may be."""
    home = os.path.expanduser("~")
    place = os.path.join(home, folder)
    if not os.path.exists(place) and not only_if_there:
        place = home
    return os.path.isdir(place) and os.access(place, os.W_OK | os.X_OK)


def _remove_empty() -> None:
    with suppress(OSError):  # another process keeps something there
        os.rmdir(os.environ.get(OF_PYTORCH, ""))
