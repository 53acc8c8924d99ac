"""Replay: what every gamma and rule would have accepted, from two numbers a token of one teacher-forced pass.

Lossless verification means: given the text so far and that position i of a block was reached, the next token is
distributed as p. So for text sampled from the target, acceptance can be worked out AFTER the fact: the probability that
a block which starts at a token accepts at least i tokens, given the text, is a closed form of log p and log q
(survival.py), and where blocks start follows from it by a renewal equation (renewal.py). No token is decoded and no
accept/reject noise is left.

From Python, call ``specbench.replay(trace, rule, gammas)``: ``help(specbench.replay.call.replay)`` has its arguments.
"""

import inspect
import sys
from types import ModuleType
from typing import Any


class _Room(ModuleType):
    """A room that can be called: ``specbench.replay`` is a function of the Python API, and importing anything of the
    room ``specbench/replay/`` binds that same name to the room."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from specbench.replay.call import replay

        return replay(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        from specbench.replay.call import replay

        return inspect.signature(replay)


sys.modules[__name__].__class__ = _Room
