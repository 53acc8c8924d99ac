"""What a user calls a part of a run: by its name in conf, where errors would know its class alone."""

from __future__ import annotations

import re

from specbench.config import CONF

_TARGET = re.compile(r"^_target_:\s*(\S+)", re.MULTILINE)


def called(group: str, part: object) -> str:
    """The name of a part in conf, such as ``masked`` for a MaskedVerifier.

    Args:
        group: a folder of conf, such as "verifier".

    Returns:
        The class's own name if none of the yamls is of it, or several are (fused and block_fused are one class).
    """
    kind, folder = type(part), CONF / group
    own = f"{kind.__module__}.{kind.__qualname__}"
    found = [path for path in folder.rglob("*.yaml") if own in _TARGET.findall(path.read_text(encoding="utf-8"))]
    return found[0].relative_to(folder).with_suffix("").as_posix() if len(found) == 1 else kind.__name__
