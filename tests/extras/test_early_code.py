"""Kernels of torch.compile that start early: those that would not wait are found, and compiled again without."""

from types import SimpleNamespace

import pytest
import torch

from specbench.core.errors import ModelError
from specbench.decoding.engines.graph import GraphEngine
from specbench.decoding.step import StepComponents
from specbench.extras.compiled import early_code
from specbench.extras.compiled.early_code import doubt
from specbench.extras.compiled.engine import CompiledEngine

KERNEL = """
triton_{name} = async_compile.triton('triton_{name}', '''
import triton
@triton_heuristics.pointwise(
    size_hints={{'x': 64}},
    triton_meta={{'signature': {{'in_ptr0': '*fp32'}}, 'launch_pdl': {early}}},
)
@triton.jit
def triton_{name}(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
{body}
''', device_str='cuda')
"""
LINES = {
    "load": "    tmp0 = tl.load(in_ptr0 + (xindex), None)",
    "wait": "    tl.extra.cuda.gdc_wait()",
    "launch": "    tl.extra.cuda.gdc_launch_dependents()",
    "store": "    tl.store(out_ptr0 + (xindex), tmp0, None)",
    "add": "    tl.atomic_add(out_ptr0 + (xindex), tmp0, None)",
}


def kernel(*lines, name="poi_fused_0", early=True):
    return KERNEL.format(name=name, early=early, body="\n".join(LINES[line] for line in lines))


@pytest.mark.parametrize(
    "lines",
    [
        ("load", "wait", "launch", "store"),
        ("wait", "load", "launch", "store"),
        ("wait", "load", "wait", "launch", "add"),
        ("load", "wait", "store"),
    ],
)
def test_one_that_waits_may_start_early(lines):
    assert doubt([kernel(*lines)]) is None


@pytest.mark.parametrize(
    "lines",
    [("store",), ("load", "store"), ("store", "wait"), ("add", "wait", "launch"), ("load", "launch", "wait", "store")],
)
def test_one_that_does_not_is_named(lines):
    """Among others that do, in the same text and in others."""
    good, bad = kernel("load", "wait", "launch", "store"), kernel(*lines, name="poi_fused_full_3")
    assert doubt([good, "x = 1", good + bad + good]) == "triton_poi_fused_full_3 does not wait"


def test_those_that_do_not_start_early_do_not_count():
    good = kernel("load", "wait", "store")
    assert doubt([kernel("store", early=False), good]) is None


def test_where_nothing_can_be_looked_at_nothing_starts_early():
    assert "looked at" in (doubt([]) or "")
    assert "looked at" in (doubt([kernel("load", "store", early=False)]) or "")


@pytest.mark.usefixtures("unchecked")
def test_what_torch_compile_writes_is_found():
    """Its list of modules is no public part of PyTorch. A matrix product alone needs no compiler of C++."""
    torch.compiler.reset()
    size = 1237
    torch.compile(torch.mm, dynamic=False)(torch.zeros(2, size), torch.zeros(size, 2))
    assert any(str(size) in text for text in early_code.sources())


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("problem", "compiled"), [(None, [True]), ("triton_0 does not wait", [True, False])])
def test_an_engine_compiles_again_without(monkeypatch, problem, compiled):
    """And captures again; a larger list of sizes is not looked at twice."""
    messages, compiles, captures = [], [], []

    def check():
        if problem:
            raise ModelError(problem)

    monkeypatch.setattr("specbench.extras.compiled.engine.say", messages.append)
    monkeypatch.setattr(early_code, "check", check)
    monkeypatch.setattr(GraphEngine, "_captured", lambda self, size: captures.append(size))
    target = SimpleNamespace()
    monkeypatch.setattr("specbench.extras.compiled.compiling.compile_model", lambda _, early: compiles.append(early))
    engine = CompiledEngine()
    engine.components, engine._early = StepComponents(target, None, None, 0), True
    engine._compile()
    for size in (8, 4):
        engine._captured(size)
    assert compiles == compiled
    assert captures == ([8, 8, 4] if problem else [8, 4])
    why = f"engine=compiled: kernels of torch.compile start one after the other: {problem}."
    assert messages == ([why] if problem else [])
