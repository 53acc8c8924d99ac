"""What libraries remember for a whole process is filled here once, so that no test depends on those that ran before it.

Which tests share a process with it, and in which order, differs from run to run.
"""

import torch
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants


def fill_lists_of_torch() -> None:
    """torch lists the functions that make tensors when a device is first used as a context, and keeps the list.

    Made while a test has torch.empty replaced, the list would lack the true one, and every later model on "meta" would
    take real memory.
    """
    with torch.device("meta"):
        torch.empty(0)


def draw_the_same_examples() -> None:
    """hypothesis draws some values from the constants of the project's modules, of those imported so far."""
    providers._get_local_constants = Constants
