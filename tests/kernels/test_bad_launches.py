"""What the kernels make of values that they do not check, and what their launches refuse."""

import inspect
import json
import subprocess
import sys

import pytest
import torch

from specbench.core.errors import ArgumentError
from specbench.core.types import Verification
from specbench.kernels import launch, launch_rows
from specbench.sampling import RowParams, SamplingParams, logit_rows
from tests.helpers import bad_launches
from tests.helpers.command_lines import ROOT, clean_environment, once
from tests.helpers.kernel_cases import DEVICE, RULES, Case, assert_agrees, changed, step, to_meta

SOUND = Case([2, 3, 0, 2], 7, "seven drafted tokens, 11 rows of the target")


@pytest.fixture(scope="module")
def launches(tmp_path_factory) -> tuple[dict[str, str], str]:
    """What was wrong with each launch of bad_launches.py that ended, by its name, and how that process did."""

    def run(folder) -> None:
        command = [sys.executable, "-m", "tests.helpers.bad_launches", str(folder / "ended")]
        environment = clean_environment(folder)
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        (folder / "how").write_text(f"exit status {done.returncode}: {done.stderr[-2000:]}")

    folder = once(tmp_path_factory, "bad_launches", run)
    lines = (folder / "ended").read_text().splitlines() if (folder / "ended").exists() else []
    ended = {line["name"]: line["problem"] for line in map(json.loads, lines)}
    return ended, (folder / "how").read_text()


@pytest.mark.thorough
@pytest.mark.parametrize("name", bad_launches.names())
def test_a_bad_value_has_the_result_that_is_promised(launches, name):
    """It ends, keeps to its memory, emits what launch.verify says, and the next launch finds a sound workspace."""
    ended, how = launches
    assert name in ended, f"this launch, or one before it, did not end; {how}"
    assert not ended[name], ended[name]


@RULES
def test_out_has_to_fit(block):
    draft, target, streams = step(SOUND, 0)
    tokens, accepted = torch.zeros((4, 4), dtype=torch.int64, device=DEVICE), torch.zeros_like(streams.seeds)
    workspace = launch.Workspace()

    def verify(out: Verification) -> Verification:
        return launch.verify(draft, target, streams, block=block, workspace=workspace, out=out)

    for wrong in (tokens[:, :3], tokens[:3], tokens.int(), tokens.t(), to_meta(tokens)):
        with pytest.raises(ArgumentError, match=r"^out\.token_ids: "):
            verify(changed(Verification(tokens, accepted), token_ids=wrong))
    for wrong in (accepted[:3], accepted.int(), to_meta(accepted)):
        with pytest.raises(ArgumentError, match=r"^out\.num_accepted: "):
            verify(changed(Verification(tokens, accepted), num_accepted=wrong))
    assert_agrees("block" if block else "token", (draft, target, streams), verify(Verification(tokens, accepted)))


def test_rows_and_their_parameters_have_to_fit():
    logits = torch.zeros((5, 7), device=DEVICE)
    params = RowParams.of([SamplingParams(top_k=2)] * 5, DEVICE)
    few = params.select(torch.arange(2, device=DEVICE))
    with pytest.raises(ArgumentError, match=r"^params: 2 rows for 5 rows of logits"):
        logit_rows(logits, few)
    rows, u = logit_rows(logits, RowParams.of([SamplingParams()] * 5, DEVICE)), torch.full((5,), 0.5, device=DEVICE)
    with pytest.raises(ArgumentError, match=r"^rows\.temperature: .*\(2,\)"):
        launch_rows.sample(changed(rows, temperature=rows.temperature[:2]), u.double())
    with pytest.raises(ArgumentError, match=r"^u: torch.float64 \(4,\)"):
        launch_rows.sample(rows, u[:4].double())
    find_cutoffs = inspect.unwrap(launch_rows.find_cutoffs)
    for name in ("temperature", "top_k", "top_p", "min_p"):
        given = {each: getattr(params, each) for each in ("temperature", "top_k", "top_p", "min_p")}
        with pytest.raises(ArgumentError, match=rf"^{name}: .*\(2,\)"):
            find_cutoffs(logits, **{**given, name: getattr(few, name)})
        with pytest.raises(ArgumentError, match=rf"^{name}: torch.int32"):
            find_cutoffs(logits, **{**given, name: given[name].int()})


def test_a_top_k_of_no_token_truncates_nothing():
    logits = torch.randn((4, 70), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    ones = torch.ones(4, dtype=torch.float64, device=DEVICE)
    top_k = torch.tensor([-1, -(2**63), 2**31 + 1, 2**63 - 1], device=DEVICE)
    cutoff, normalizer = launch_rows.find_cutoffs(logits, ones, top_k, ones, 0 * ones)
    assert (cutoff == -torch.inf).all()
    torch.testing.assert_close(normalizer, logits.double().logsumexp(dim=1), rtol=0, atol=2e-6)
