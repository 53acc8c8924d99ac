"""Made-up command lines: python -m tests.helpers.fuzz_command_lines FOLDER COUNT fails if one ends otherwise than it may.

Each replays a trace of two tokens, with one to three overrides made up by hypothesis: keys that there are and keys that
there are not, with values of every kind. It may end in rows of the requested choices, or in one clear message.
"""

from __future__ import annotations

import sys
import traceback
import warnings
from pathlib import Path

import pandas as pd
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from specbench.metrics import results
from tests.helpers.cli_cases import TRACE
from tests.helpers.command_lines import Ended
from tests.helpers.forked import Child

LOOKS = ("-h", "--help", "--cfg", "--info", "--hydra-help")
HANGS = 60.0  # seconds after which a process counts as hanging
SMALL = (
    *("protocol=replay", "protocol.trace=trace.jsonl", "tracking.mode=disabled"),
    *("protocol.gammas=[1]", "protocol.policies=[]", "protocol.planned=[]"),
)
KEYS = (
    *("gamma", "batch_size", "max_new_tokens", "seed", "device", "dtype", "threads", "share_machine"),
    *("sampler.temperature", "sampler.top_k", "sampler.top_p", "sampler.min_p", "pair.target", "pair.chat", "pair"),
    *("workload.path", "workload.limit", "workload", "tracking.mode", "tracking.project", "tracking.texts"),
    *("protocol", "protocol.trace", "protocol.gammas", "protocol.alpha", "protocol.power", "protocol.planned"),
    *("protocol._target_", "verifier", "verifier._target_", "drafter", "sampler", "+verifier.bits", "exp", "+exp"),
    *("hydra.sweep.dir", "hydra.mode", "hydra/launcher", "resume", "gama", "sampler.topp", "~sampler", "~gamma"),
    "+x.y.z",
    *("hydra.verbose", "hydra.job.num", "hydra.job.chdir", "hydra.searchpath", "tracking", "++seed", "verifier@other"),
)
VALUES = (
    *("", "null", "true", "false", "0", "1", "-1", "2", "1.5", "1e400", "-0.0", "nan", "inf", "-inf", "007", "0x10"),
    *(str(2**31), str(2**63), str(2**64), "9" * 400, "1e-400", "[]", "{}", "[1,2]", "[naive,masked]", "{a:1}"),
    "[[[[]]]]",
    *("[" * 200, "{" * 50, "'", '"', "'open", "a b", "a=b", "a,b", "1,", ",1", ",", "1,2", "naive,masked", "range(3)"),
    *("choice(1,2)", "interval(0,1)", "glob(*)", "glob(*,exclude=m*)", "sort(2,1)", "shuffle(1,2)", "int('x')"),
    "${gamma}",
    *("${nope}", "${oc.env:NOPE}", "${oc.env:HOME}", "${now:%Y}", "${hydra:job.num}", "${", "}", "\\", "\\'", ".."),
    *("../..", "."),
    *("/", "~", "/dev/null", "/dev/zero", "/proc/self/mem", "/nowhere/at/all", "trace.jsonl", "fifo", "a" * 300),
    "a/" * 200,
    *("é", "😀", ":smile:", "[red]x[/red]", "[/]", "%s%n", "{0}", "\t", "\n", "\udc80", "naive", "masked", "greedy"),
    "latest",
    *("os.system", "builtins.print", "builtins.exec", "nope.Nope", "specbench.rules.token.naive.NaiveVerifier"),
    *("cuda", "cpu"),
    *("joblib", "basic", "file://", "pkg://nope", "RUN", "MULTIRUN", "replay", "smoke", "float32", "offline"),
    "x" * 5000,
)
OVERRIDES = st.builds("{}={}".format, st.sampled_from(KEYS), st.sampled_from(VALUES))
ODD = st.sampled_from(
    (
        *("gamma", "=", "==", "--", "-", "-m", "--multirun", "--nope", "--cfg", "--info", "--package", "=1", "+"),
        *("++", "~", "report"),
    )
)


def command_lines(count: int) -> list[list[str]]:
    """So many, the same ones each time; most have one override, so that no other error hides its own."""
    made: dict[tuple[str, ...], None] = {}
    one = st.tuples(OVERRIDES)

    @settings(
        max_examples=3 * count,  # hypothesis repeats itself
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.one_of(one, one, one, st.tuples(OVERRIDES, OVERRIDES), st.tuples(OVERRIDES, ODD)))
    def collect(overrides: tuple[str, ...]) -> None:
        made[overrides] = None

    collect()
    return [list(overrides) for overrides in made][:count]


def check(overrides: list[str], got: Ended, place: Path) -> None:
    """Asserts that a command line ended in rows of what it asked for, or in a message that names one of its keys."""
    assert got.status in (0, 1, 2)  # neither a signal nor a hang
    assert "Traceback" not in got.text
    if got.status != 0:
        assert any(override.lstrip("+~").partition("=")[0] in got.text for override in overrides)
    elif overrides[-1] not in LOOKS:
        plans = [plan.parent for plan in place.glob("**/plan.json") if list(plan.parent.glob("*/results.parquet"))]
        rows = pd.concat([results.read_results(sweep) for sweep in plans])
        assert len(rows)
        for override in overrides:
            key, _, value = override.lstrip("+").partition("=")
            if key in ("seed", "verifier", "temperature") and not {*value} & {*",($"}:
                assert set(rows[key].astype(str)) == {value.lstrip("0") or "0"}


def _main(folder: str, count: str) -> None:
    warnings.simplefilter("ignore")
    lines, fine, wrong = command_lines(int(count)), 0, []
    assert len(lines) == int(count)
    for number, overrides in enumerate(lines):
        place = Path(folder) / str(number)
        place.mkdir()
        (place / "trace.jsonl").write_text(TRACE["trace.jsonl"])
        (place / "fifo").touch()
        got = Child(place, *SMALL, *overrides).ended(HANGS)
        fine += got.status == 0
        try:
            check(overrides, got, place)
        except Exception:
            wrong.append(f"{overrides}: exit status {got.status}\n{got.text[-1500:]}\n{traceback.format_exc()}")
    assert not wrong, "\n\n".join(wrong)
    assert 2 <= fine <= len(lines) // 2  # neither all nonsense nor all fine


if __name__ == "__main__":
    _main(*sys.argv[1:])
