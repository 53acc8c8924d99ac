"""Where the folder conf/ lies, and the names that its files give to classes."""

import re
from pathlib import Path

_PACKAGE = Path(__file__).parent.parent
CONF = _PACKAGE / "conf" if (_PACKAGE / "conf").is_dir() else _PACKAGE.parent / "conf"  # in a wheel; in a checkout
_TARGET = re.compile(r"^_target_:\s*(\S+)", re.MULTILINE)


def config_name(group: str, part: object) -> str:
    """Returns the name of an object in conf, such as ``masked`` for a MaskedVerifier: what a user calls it.

    Returns:
        The stem of the yaml. The name of the class if no yaml is of it, or if several are: fused and block_fused are
        one class.
    """
    kind, folder = type(part), CONF / group
    class_path = f"{kind.__module__}.{kind.__qualname__}"
    paths = [path for path in folder.rglob("*.yaml") if class_path in _TARGET.findall(path.read_text(encoding="utf-8"))]
    return paths[0].relative_to(folder).with_suffix("").as_posix() if len(paths) == 1 else kind.__name__
