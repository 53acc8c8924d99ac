"""protocol=judge takes texts of a file: which of them are compared, and which files are refused."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from specbench.core.errors import ConfigError
from specbench.protocols import judge
from specbench.protocols.judging.finding import CANNOT_TELL, NOT_ASKED, NOT_REFUTED, REFUTED
from specbench.sources import Mode
from specbench.sources.contract import SAMPLED
from specbench.sources.file import FileSource
from tests.helpers import made_up_engines as engines
from tests.protocols.test_judge import certificate, judged, verdicts
from tests.sources.test_own_and_file import written

pytestmark = pytest.mark.usefixtures("few_simulated", "blank_figures")


def sampled(folder: Path) -> list[dict[str, Any]]:
    """The lines of the texts that a judgement has sampled."""
    return [json.loads(line) for line in (folder / SAMPLED).read_text().splitlines()]


def test_texts_of_a_file_are_judged_as_they_were_live(tmp_path):
    live = judged(engines.Biased(0.35), tmp_path)
    source = FileSource(str(tmp_path / SAMPLED))
    outcome = judged(source, prompts=1)
    assert verdicts(outcome) == [REFUTED, NOT_REFUTED, NOT_ASKED, NOT_ASKED]
    first, other = (certificate(judgement)["findings"][0]["numbers"] for judgement in (live, outcome))
    assert first["texts"] == other["texts"]
    assert first["log10_evidence"] == pytest.approx(other["log10_evidence"])
    assert "served by made up 1" in outcome.headline


def test_texts_of_a_file_are_compared_whole(tmp_path, monkeypatch):
    """Every draw is another one from the tenth token on. What is left out of a file is named."""
    rng, lines = random.Random(0), []
    for n in range(200):
        for late, mode in enumerate(Mode):
            ids = [rng.randrange(2) + 2 * (late and i > 8) for i in range(24)]
            lines.append({"prompt_id": f"{n % 4}", "mode": mode, "token_ids": ids})
    source = written(tmp_path, *lines)
    monkeypatch.setattr(judge, "TEXTS", 2)  # of an engine
    whole, begun = (judged(source, texts=texts, length=length) for texts, length in ((None, None), (100, 8)))
    assert (verdicts(whole)[0], verdicts(begun)[0]) == (REFUTED, NOT_REFUTED)
    scopes = [judgement.documents["certificate.md"] for judgement in (whole, begun)]
    assert ["texts of 8 tokens (of up to 24, 100 of 400 texts at most)" in scope for scope in scopes] == [False, True]


def test_a_resumed_judgement_of_a_file_counts_no_text_twice(tmp_path):
    """Texts that the job had written were judged, and then the file's from the first on."""
    judged(engines.Several(), tmp_path, texts=160, rounds=0)
    (tmp_path / "job").mkdir()
    source = FileSource(str(tmp_path / SAMPLED))
    judged(source, tmp_path / "job", texts=80)
    resumed, fresh = (judged(source, folder, texts=None) for folder in (tmp_path / "job", None))
    assert certificate(resumed)["findings"] == certificate(fresh)["findings"]
    assert len((tmp_path / "job" / SAMPLED).read_text().splitlines()) == certificate(fresh)["texts"]


def test_a_file_without_texts_at_temperature_0_says_nothing_of_them(tmp_path):
    judged(engines.Engine(), tmp_path, greedy_length=0, rounds=0)
    lines = [line for line in sampled(tmp_path) if line["temperature"] == 1]
    outcome = judged(written(tmp_path, *lines), prompts=1, rounds=2)
    assert verdicts(outcome)[1:] == [NOT_ASKED] * 3


def test_texts_at_temperature_0_of_other_parameters_than_the_run_s_are_refused(tmp_path):
    """They were compared with the plain ones, and the forks that a penalty makes refuted a sound engine."""
    ids = {Mode.PLAIN: [3, 5, 7], Mode.SPECULATIVE: [3, 5, 8]}
    penalty = {Mode.PLAIN: {}, Mode.SPECULATIVE: {"repetition_penalty": 1.3}}
    lines = [
        {"prompt_id": "a", "mode": mode, "token_ids": ids[mode], "temperature": 0.0, "sampling": penalty[mode]}
        | {"logprobs": [-0.01] * 3}
        for mode in Mode
    ]
    with pytest.raises(ConfigError, match=r"^sampler\.repetition_penalty=1\.0: texts of prompt 'a' in .* with 1\.3\."):
        judged(written(tmp_path, *lines), length=None, greedy_length=None)
    assert verdicts(judged(written(tmp_path, *(line | {"sampling": {}} for line in lines))))[1] == REFUTED


def test_a_file_s_texts_that_overrun_their_limit_break_the_limit_and_not_the_distribution(tmp_path):
    """They were refuted as distributed otherwise, by their number of tokens."""
    judged(engines.OneTooMany(), tmp_path, rounds=0)
    kept = [line for line in sampled(tmp_path) if line["question"] == "distribution"]
    outcome = judged(written(tmp_path, *kept), length=None)
    assert verdicts(outcome)[::2] == [NOT_REFUTED, REFUTED]
    assert re.search(r"max_tokens is kept \(speculative\): not in (\d+) of \1, too long", outcome.headline)
    assert "texts of 3 tokens" in outcome.documents["certificate.md"]


def test_a_file_with_texts_of_one_mode_says_which_are_missing(tmp_path):
    lines = [{"prompt_id": "a", "mode": "plain", "text": "x"}]
    with pytest.raises(ConfigError, match='has no speculative texts. Add lines with "mode": "speculative"'):
        judged(written(tmp_path, *lines))


def test_a_file_of_texts_at_temperature_0_compares_no_distributions(tmp_path):
    judged(engines.Engine(), tmp_path, rounds=0)
    lines = [line for line in sampled(tmp_path) if line["question"] == "greedy"]
    outcome = judged(written(tmp_path, *lines), length=None, greedy_length=None)
    assert verdicts(outcome)[:2] == [NOT_ASKED, NOT_REFUTED]
    assert "no distributions are compared" in outcome.documents["certificate.md"]


def test_texts_that_a_file_has_beyond_its_pairs_answer_no_check_and_are_not_timed(tmp_path):
    """Served without a stop string or a limit, they would break both and refute a sound engine."""
    judged(engines.Engine(), tmp_path, rounds=0)
    lines = sampled(tmp_path)
    more = [line for line in lines if line["question"] == "greedy" or line["mode"] == Mode.SPECULATIVE]
    outcome = judged(written(tmp_path, *lines, *more, *more), rounds=2)
    assert verdicts(outcome)[1:] == [NOT_REFUTED, NOT_ASKED, NOT_ASKED]
    assert outcome.failure is None


def test_a_file_without_pairs_of_texts_is_refused(tmp_path):
    """Lines that no other line is compared with were not checked, and the command succeeded."""
    drawn = [{"prompt_id": "ab"[n % 2], "mode": list(Mode)[n % 2], "text": " x"} for n in range(8)]
    other = [{**drawn[0], "mode": "speculative", "temperature": 0.0}, drawn[0]]  # of a prompt, but drawn or not
    for lines in (drawn, other):
        with pytest.raises(
            ConfigError, match=r"served\.jsonl: no prompt_id has texts of both modes\. Give both the same"
        ):
            judged(written(tmp_path, *lines))


def test_a_file_whose_drawn_texts_have_no_pairs_is_judged_by_those_at_temperature_0(tmp_path):
    lines = [{"prompt_id": "ab"[n % 2], "mode": list(Mode)[n % 2], "text": " x"} for n in range(8)]
    greedy = [{"prompt_id": "c", "mode": mode, "text": " x", "temperature": 0.0} for mode in Mode]
    outcome = judged(written(tmp_path, *lines, *greedy))
    assert verdicts(outcome)[:2] == [NOT_ASKED, NOT_REFUTED]
    assert certificate(outcome)["findings"][0]["answer"] == "No prompt_id has drawn texts of both modes."


@pytest.mark.parametrize(("seeds", "verdict"), [(1, CANNOT_TELL), (60, NOT_REFUTED)])
def test_texts_of_one_seed_are_no_evidence_and_the_certificate_counts_them(seeds, verdict, tmp_path):
    """They were taken as independent draws: a file of copies twice as long had twice the evidence."""
    judged(engines.Engine(), tmp_path, greedy_length=0, rounds=0)
    kept = [line for line in sampled(tmp_path) if line["question"] == "distribution"]
    numbers = {mode: [line for line in kept if line["mode"] == mode] for mode in Mode}
    lines = [line | {"seed": n // 4 % seeds} for some in numbers.values() for n, line in enumerate(some)]
    twice = judged(written(tmp_path, *lines, *lines), length=None)
    words = f"{960 - 8 * seeds:,} texts are left out: an earlier text of their prompt and mode has their seed"
    assert certificate(twice)["verdict"] == verdict
    assert certificate(twice)["findings"][0]["numbers"]["texts"] == 8 * seeds
    assert all(words in text for text in (twice.headline, twice.documents["certificate.md"]))
