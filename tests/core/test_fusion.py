"""Fusible functions are replaced inside a block, in its thread alone."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from specbench.core.fusion import fused_by, fusible


@fusible
def doubled(number):
    return 2 * number


def negated(function):
    return lambda number: -function(number)


def test_functions_are_replaced_inside_the_innermost_block():
    with fused_by(negated):
        with fused_by(lambda _: lambda number: number), ThreadPoolExecutor(1) as other:
            assert [doubled(3), other.submit(doubled, 3).result(60)] == [3, 6]
        assert doubled(3) == -6
        with pytest.raises(ZeroDivisionError), fused_by(lambda _: lambda number: number):
            _ = 1 / 0
        assert doubled(3) == -6, "as it was before a block that failed"
    assert doubled(3) == 6
