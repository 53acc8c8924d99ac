"""A switch is on inside its block, in the thread of the block alone."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import torch

from specbench.core.switch import Switch


def test_threads_do_not_share_a_switch():
    """The first thread leaves its block while the second is in its own, which then restores the state before it."""
    switch, entered, left = Switch(), Barrier(2), Barrier(2)

    def first():
        with switch():
            entered.wait(60)
        left.wait(60)
        return switch.on

    def second():
        with switch():
            entered.wait(60)
            left.wait(60)
            inside = switch.on
        return inside, switch.on

    with ThreadPoolExecutor(2) as threads:
        results = [threads.submit(first), threads.submit(second)]
        assert [result.result(60) for result in results] == [False, (True, False)]
    assert not switch.on


def test_compiled_code_follows_the_switch():
    switch = Switch()
    compiled = torch.compile(lambda x: x + 1 if switch.on else x * 2, backend="eager", fullgraph=True)
    three = torch.tensor(3)
    outside = compiled(three)
    with switch():
        inside = compiled(three)
    assert [outside, inside, compiled(three)] == [6, 4, 6]
