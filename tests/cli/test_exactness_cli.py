"""The laboratory's command lines: whose verifier it is, what is refused, and exit statuses."""

import json
import os
import re
import signal

import pytest

from specbench.exactness.zoo.residual import PreviousRowBonus
from specbench.rules.token.masked import MaskedVerifier
from specbench.runs.job_row import component_name
from specbench.runs.overrides import spelled_out
from specbench.runs.plan import PlannedJob
from tests.helpers.cli_cases import AS_SLOW_CODE, Case
from tests.helpers.command_lines import Ran, run_once, untracked

HERE = "tests.cli.test_exactness_cli"
FEW = (
    *("protocol=exactness", "tracking.mode=disabled", "protocol.draws=3000"),
    *("protocol.serial_draws=0", "protocol.calls=0", "protocol.use_calls=0", "protocol.seconds=0", AS_SLOW_CODE),
)


class Claims(PreviousRowBonus):
    """Flawed, and says that it is not."""

    lossless = True


class Ends(MaskedVerifier):
    """Ends its process in a call of D: small fixtures have four tokens and fewer."""

    def verify(self, draft, target, streams):
        if target.logits.shape[1] > 300:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().verify(draft, target, streams)


REFUSED = [
    Case("no such suite", ("protocol=exactness", "protocol.suite=all"), ("suite=all: no such suite. Use quick,",)),
    Case("no setting", ("protocol=exactness", "+protocol.patience=3"), ("protocol.patience=3: no setting of a suite",)),
    *(
        Case(f"zoo {override}", ("+exp=flawed_zoo", "verifier=flawed/lenient", override), (
            f"{override}: ", "protocol=exactness would ignore it. It is for calls drawn from D",
        ))
        for override in ("gamma=7", "sampler=chat", "sampler.top_p=0.9", "batch_size=8", "dtype=bfloat16")
    ),
]  # fmt: skip
CLAIMS = Case("false claim", (*FEW, "verifier=block", f"verifier._target_={HERE}.Claims"), ())
ENDS = Case("ended", (*FEW, f"verifier._target_={HERE}.Ends", "protocol.calls=9", "protocol.inputs_seed=4"), ())
BUGS = Case("two bugs, one unknown", (*FEW, "verifier=flawed", "verifier.bug=target_residual,lenience"), ())
OTHER = ("protocol=agreement", "+verifier@protocol.other=flawed", "protocol.other.bug=target_residual")
COMPARED = Case("two", (*OTHER, "protocol.draws=2000", "protocol.vocabulary=64", "batch_size=8"), ())
NAMELESS = Case("no bug", (*FEW, "verifier=flawed"), ("verifier.bug=???: no value given",))
NO_MODULE = Case("absent module", (*FEW, "verifier._target_=mine.Mine"), ("verifier=", "'mine'", "PYTHONPATH"))


@pytest.fixture(scope="module")
def ran(tmp_path_factory, request) -> dict[str, Ran]:
    """Every command line of the tests that are run, in one process, by its reason."""
    chosen = [item.callspec.params.get("case") for item in request.session.items if hasattr(item, "callspec")]
    refused_ones = [case for case in [*REFUSED, NO_MODULE] if case in chosen]
    cases = [*refused_ones, CLAIMS, ENDS, BUGS, COMPARED, NAMELESS]
    lines = {case.reason: (untracked(case.arguments), False) for case in cases}
    return run_once(tmp_path_factory, "exactness_cli", lines, anew=True)


def test_no_line_here_imports_what_only_models_need(ran):
    """A second or more of each command; the last line's process has run all the others."""
    assert ran[NAMELESS.reason].ended.heavy == []


@pytest.mark.cases(6)
@pytest.mark.parametrize("case", [*REFUSED, NO_MODULE, NAMELESS], ids=lambda case: case.reason)
def test_what_would_be_ignored_or_cannot_work_is_refused_by_name(case, ran):
    got = ran[case.reason]
    got.ended.check(1, *case.says)
    assert not list(got.folder.rglob("results.parquet"))


def test_a_refuted_verifier_that_says_it_is_lossless_fails_under_its_own_name(ran):
    """Its name is that of its target, not of the yaml that the target was written over."""
    got = ran[CLAIMS.reason]
    written = got.certificate
    assert written["verdict"] == "not lossless"
    got.ended.check(1, f"failed: it is declared lossless and is {written['headline']}")
    assert written["verifier"] == got.rows.iloc[0]["verifier"] == f"{HERE}.Claims"
    assert "block" not in got.ended.text.replace("verifier=block", "")
    assert got.rows.iloc[0]["lossless"]


@pytest.mark.parametrize(
    ("choice", "overrides", "name"),
    [
        ("block", ["gamma=2"], "block"),
        ("block", ["+verifier.bits=8"], "block[bits=8]"),
        ("block", ["verifier.heat=null", "verifier.sampled=true"], "block[heat=null,sampled=true]"),
        ("block", ["verifier._target_=mine.Mine"], "mine.Mine"),
        ("block", ["verifier._target_=mine.Mine", "+verifier.bits=8", "++verifier.a=x"], "mine.Mine[a=x,bits=8]"),
        ("flawed", ["verifier.bug=lenient"], "flawed/lenient"),
        ("flawed", ["verifier.bug=lenient", "+verifier.lenience=0.7"], "flawed/lenient[lenience=0.7]"),
        ("flawed", ["verifier.bug=lenient", "verifier._target_=mine.Mine"], "mine.Mine[bug=lenient]"),
    ],
)
def test_a_verifier_is_named_by_what_the_command_line_made_of_it(choice, overrides, name):
    node = {"_target_": "mine.Mine", "bits": 8, "a": "x", "bug": "lenient", "lenience": 0.7, "heat": None}
    node["sampled"] = True  # named as a command line gives it, and not in Python's words
    overrides = [f"verifier={choice}", *overrides, "verifier@protocol.other=naive", "protocol.other.bits=8"]
    job = PlannedJob(0, "", "", overrides, choices={"verifier": choice})
    assert component_name("verifier", node, job) == name


@pytest.mark.parametrize("overrides", [[], ["+source._target_=mine.Greedy"]])
def test_a_source_without_a_yaml_is_named_by_its_class(overrides):
    job = PlannedJob(0, "", "", overrides, choices={"verifier": "masked"})
    assert component_name("source", {"_target_": "mine.Greedy"}, job) == "mine.Greedy"


def test_another_verifier_is_compared_from_the_command_line(ran):
    got = ran[COMPARED.reason]
    got.ended.check(1, "failed: it does not emit the tokens of TargetResidual: ")
    row = got.rows.iloc[0]
    assert (row["verifier"], row["protocol"]) == ("masked", "agreement")


def test_bugs_are_swept_by_name_and_an_unknown_one_is_answered_with_the_list(ran):
    got = ran[BUGS.reason]
    got.ended.check(1, "verifier.bug=lenience: no such bug. Use one of accepts_everything, ")
    assert got.certificate["verifier"] == got.rows.iloc[0]["verifier"] == "flawed/target_residual"
    assert "failed: it" not in got.ended.text  # it does not claim to be lossless


@pytest.mark.parametrize(
    ("override", "spelled"),
    [
        ("verifier=flawed/lenient", ["verifier=flawed", "verifier.bug=lenient"]),
        ("verifier=flawed/lenient,masked", ["verifier=flawed/lenient,masked"]),
        ("verifier=masked,flawed/lenient", ["verifier=masked,flawed/lenient"]),
        ("verifier=external/transformers", ["verifier=external/transformers"]),
        ("workload.path=flawed/lenient", ["workload.path=flawed/lenient"]),
    ],
)
def test_the_name_in_results_is_a_choice_on_the_command_line(override, spelled):
    assert spelled_out(override) == spelled


def test_an_ended_process_leaves_the_certificate_of_what_was_done_and_no_row(ran):
    got = ran[ENDS.reason]
    (job,) = got.folder.glob("outputs/*/*/0")
    written = json.loads((job / "certificate.json").read_text())
    assert re.fullmatch(r"after \d of 9 calls of D", written["interrupted"])
    assert written["verdict"] == "not rejected"
    assert written["draws"] > 0
    first_screen = (job / "certificate.md").read_text().partition("What was covered")[0]
    assert f"interrupted {written['interrupted']}" in first_screen
    says = (f"interrupted {written['interrupted']}; certificate: ", "failed: interrupted (SIGTERM)")
    got.ended.check(128 + signal.SIGTERM, *says)
    assert not (job / "results.parquet").exists()
