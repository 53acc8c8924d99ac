"""The input distribution D: what is drawn, and what a rule emits for it."""

import collections
import dataclasses
import functools
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from specbench.exactness.inputs import CHOICES, STRATA, Takes, draw_call, published
from specbench.exactness.inputs.census import Census
from specbench.exactness.inputs.distribution import drawn_from
from specbench.exactness.inputs.draw import MOST_CELLS, WRITTEN
from specbench.exactness.inputs.rows import cutoffs, probabilities
from specbench.exactness.trials.judge import CallsToDraw
from specbench.exactness.trials.run import run_trials
from specbench.rules.block.formulas import RULE as BLOCK
from specbench.rules.block.masked import BlockVerifier
from specbench.rules.token.formulas import RULE as TOKEN
from specbench.rules.token.masked import MaskedVerifier
from specbench.rules.token.naive import NaiveVerifier
from specbench.sampling import RowParams, SamplingParams
from specbench.sampling.rows import sorted_cutoffs
from tests.helpers.cases import CPU

pytestmark = pytest.mark.usefixtures("unchecked")
BY_NAME = {stratum.name: stratum for stratum in STRATA}
QUICK = tuple(BY_NAME[name] for name in ("tiny", "small", "recorded", "long drafts"))
LARGE = tuple(stratum for stratum in STRATA if stratum.large)


def some_calls(count: int, strata=QUICK):
    return [_drawn(number, strata[number % len(strata)].name) for number in range(count)]


@functools.cache
def _drawn(number: int, stratum: str):
    with torch.inference_mode():
        return draw_call(4, number, CPU, Takes(), BY_NAME[stratum])


def test_probabilities_of_the_tables_sum_to_one():
    tables = [choice.options for choice in CHOICES.values()]
    tables += [ranges for stratum in STRATA for ranges in (stratum.gamma, stratum.batch)]
    for options in (*tables, {stratum.name: stratum.probability for stratum in STRATA}):
        assert math.isclose(sum(options.values()), 1)
    assert len(list(published())) == len(STRATA) + len(CHOICES)


def test_options_come_as_often_as_the_table_says():
    """10 options at 5 standard deviations: a false alarm below 1e-5, and a fixed seed."""
    rng = np.random.default_rng(0)
    for choice in CHOICES.values():
        drawn = collections.Counter(choice.draw(rng, 20_000))
        assert set(drawn) <= set(choice.options)
        for option, share in choice.options.items():
            assert abs(drawn[option] - 20_000 * share) < 5 * math.sqrt(20_000 * share), (choice.name, option)


def test_a_call_is_the_same_whenever_it_is_drawn():
    first = [draw_call(9, number, CPU) for number in range(6)]
    for call in reversed(first):
        again = draw_call(9, call.number, CPU)
        assert again.options == call.options
        for one, other in ((call.target, again.target), (call.draft.rows, again.draft.rows)):
            assert (one is None) == (other is None)
            assert one is None or torch.equal(one.logits, other.logits)
        assert torch.equal(call.draft.token_ids, again.draft.token_ids)
        assert torch.equal(call.streams.seeds, again.streams.seeds)
    assert not torch.equal(first[0].streams.seeds, draw_call(10, 0, CPU).streams.seeds)


def test_every_row_of_every_request_is_new():
    seen = set()
    rows = 0
    for call in some_calls(24, strata=(BY_NAME["small"], BY_NAME["recorded"])):
        for request in range(len(call.counts)):
            if call.options["mask"][request] in ("few", "one"):
                continue  # a row with one possible token is one of few
            for row in call.alone(request).target.logits:
                seen.add(row.float().numpy().tobytes())
                rows += 1
    assert rows > 150
    assert len(seen) == rows


def test_argmax_ids_and_draft_lengths_are_spread_out():
    """Ids of the argmax in all parts of a large vocabulary, and all draft lengths up to 16."""
    parts, lengths = collections.Counter(), collections.Counter()
    for call in some_calls(16, strata=(BY_NAME["256k"],)):
        parts.update((call.p.argmax(dim=1) * 4 // call.vocabulary).tolist())
    lengths.update(drawn_from(BY_NAME["tiny"].gamma, np.random.default_rng(0), 4000).tolist())
    assert min(parts[part] for part in range(4)) > 3
    assert set(range(17)) <= set(lengths)


def test_bans_of_some_calls_are_masks_for_verifiers_that_take_them():
    """The same distributions: the logits of banned tokens are in place there, and the mask removes them."""
    sets = collections.Counter()
    for number in range(0, 240, 3):
        with torch.inference_mode():
            stratum = QUICK[number % len(QUICK)]
            written, masked = (draw_call(4, number, CPU, Takes(masks=masks), stratum) for masks in (False, True))
        assert written.target.allowed is None
        assert torch.equal(written.p, masked.p)
        plain = masked.target.with_mask_applied().logits
        assert torch.equal(plain, written.target.logits)
        assert masked.target.logits.stride() == written.target.logits.stride()
        if masked.target.allowed is not None:
            sets["of requests" if masked.target.allowed.rows > 1 else "of rows"] += 1
            assert not plain.equal(masked.target.logits) or masked.vocabulary < 64
    assert min(sets["of requests"], sets["of rows"]) > 3
    assert draw_call(4, 1, CPU, Takes(masks=True), BY_NAME["large batches"]).target.allowed is None


def test_seeds_and_positions_are_those_that_users_write_too():
    streams = [call.streams for call in some_calls(60, strata=(BY_NAME["tiny"],))]
    for name in ("seeds", "positions"):
        values = torch.cat([getattr(call_streams, name) for call_streams in streams])
        written = values <= WRITTEN
        assert 0.4 < written.double().mean() < 0.8
        assert len(values[written].unique()) > 100


def test_sizes_fit_into_memory():
    for stratum in STRATA:
        for call in some_calls(4, strata=(stratum,)):
            assert len(call.counts) == 1 or len(call.target) * call.vocabulary <= MOST_CELLS


@pytest.mark.parametrize(
    ("verifier", "rule", "count", "strata"),
    [(NaiveVerifier(), TOKEN, 60, QUICK), (MaskedVerifier(), TOKEN, 60, QUICK), (BlockVerifier(), BLOCK, 60, QUICK),
     (MaskedVerifier(), TOKEN, 12, LARGE)],
    ids=["naive", "masked", "block", "large"],
)  # fmt: skip
def test_sound_code_emits_its_rules_tokens(verifier, rule, count, strata):
    for call in some_calls(count, strata):
        result = verifier.verify(call.draft, call.target, call.streams)
        expected = call.expected(rule)
        assert torch.equal(result.token_ids, expected.token_ids), call.name
        assert torch.equal(result.num_accepted, expected.num_accepted)


def test_a_request_alone_has_the_tokens_that_it_has_in_company():
    for call in some_calls(40):
        whole = MaskedVerifier().verify(call.draft, call.target, call.streams)
        for request in range(min(3, len(call.counts))):
            one = call.alone(request)
            result = MaskedVerifier().verify(one.draft, one.target, one.streams)
            width = result.token_ids.shape[1]
            assert torch.equal(result.token_ids[0], whole.token_ids[request, :width])
            assert torch.equal(one.expected(TOKEN).token_ids, result.token_ids)


def test_dense_rows_are_the_probabilities_that_rows_say():
    for call in some_calls(40):
        rows = dataclasses.replace(call.target)
        probs, normalizer = probabilities(rows, rows.temperature.numpy(), True)
        torch.testing.assert_close(probs, rows.probs(), rtol=1e-9, atol=1e-15)
        random = rows.temperature > 0
        torch.testing.assert_close(normalizer[random], rows.normalizer[random], rtol=1e-12, atol=1e-9)


def test_cutoffs_are_those_of_the_one_door():
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(200, 250, generator=generator)
    logits[::3] = (logits[::3] * 2).round() / 2
    params = [
        SamplingParams(0.7, top_k=5), SamplingParams(1.3, top_p=0.8), SamplingParams(min_p=0.05),
        SamplingParams(0.9, top_k=12, top_p=0.7), SamplingParams(2.0, top_k=200, top_p=0.95),
    ]  # fmt: skip
    rows = RowParams.of([params[i % len(params)] for i in range(200)])
    expected, _ = sorted_cutoffs(logits, rows)
    assert torch.equal(cutoffs(logits, rows.temperature, rows.top_k, rows.top_p, rows.min_p), expected)


def test_options_are_true_of_the_tensors():
    """A certificate counts options, so that a call must be what they say."""
    seen = collections.Counter()
    for call in some_calls(120):
        draft, target, options = call.draft, call.target, call.options
        (stride, _), vocabulary = target.logits.stride(), call.vocabulary
        layouts = {
            "contiguous": stride == vocabulary and target.logits.storage_offset() == 0,
            "offset": stride == vocabulary and target.logits.storage_offset() > 0,
            "wider": vocabulary < stride <= vocabulary + 128,
            "every second row": stride == 2 * vocabulary,
        }
        assert layouts[options["layout"]] or (options["padding"] == "padded" and len(target) == 1)
        assert str(target.logits.dtype) == f"torch.{options['dtype']}"
        assert (draft.rows is None) == (options["drafts"] == "one-hot")
        assert draft.padded == (options["padding"] == "padded")
        assert (draft.max_draft_tokens > int(call.counts.max())) == (options["spare"] == "some")
        known = [target.log_normalizer is not None, draft.rows is not None and draft.rows.log_normalizer is not None]
        assert known[0] == (options["normaliser"] == "both known")
        if draft.rows is not None:
            dtype = options["dtype"] if options["draft dtype"] == "same" else options["draft dtype"]
            assert str(draft.rows.logits.dtype) == f"torch.{dtype}"
            assert known[1] == (options["normaliser"] != "both unknown")
        for b in range(len(call.counts)):
            row = int(draft.first_row[b]) + b
            own = {name: value if isinstance(value, str) else value[b] for name, value in options.items()}
            temperature, truncated = float(target.temperature[row]), bool(target.cutoff[row] > -math.inf)
            assert (temperature in (0.0, 1.0)) == (own["temperature"] in ("0", "1"))
            assert own["temperature"] in (f"{temperature:g}", "log-uniform")
            truncates = own["truncation"] != "none" and temperature > 0
            assert truncated == truncates or (truncates and (vocabulary <= 200 or own["mask"] != "none"))
            assert own["mask"] != "none" or not target.logits[row].isinf().any()
            assert own["mask"] != "one" or int((call.p[call.path.p_rows[b, 0]] > 0).sum()) == 1
            assert own["seed"] != "written" or int(call.streams.seeds[b]) <= WRITTEN
            assert own["position"] != "written" or int(call.streams.positions[b]) <= WRITTEN
            seen.update(own.items())
    assert {(choice.name, option) for choice in CHOICES.values() for option in choice.options} <= set(seen)


def test_the_census_counts_every_call_once():
    """Also those that are made three times, to see whether arguments are altered (every 64th)."""
    verifier, counted = MaskedVerifier(), Census()
    trials = run_trials(verifier, CallsToDraw(2, CPU, 70, strata=QUICK))
    for number in range(70):
        counted.add(draw_call(2, number, CPU, Takes.of(verifier), QUICK[number % len(QUICK)]))
    assert trials.census == counted
    requests = collections.Counter()
    for row in counted.rows():
        requests[row.property] += row.requests
        assert 0 < row.calls <= min(70, row.requests)
    assert set(requests) >= set(CHOICES)
    assert set(requests.values()) == {trials.rows[-1].requests}


def test_a_path_is_read_from_padded_drafts_and_dense_ones_alike():
    for call in some_calls(60):
        path = call.path
        p, q = (torch.where(torch.arange(call.tokens.shape[1]) < call.counts[:, None], probs, 1.0)
                for probs in (path.drafted_p, path.drafted_q))  # fmt: skip
        draft, target = call.draft.compact(call.target)
        from specbench.rules import batched

        wanted_p, wanted_q = batched.drafted_probs(draft, target)
        torch.testing.assert_close(p, batched.padded(wanted_p, draft, 1.0), rtol=1e-9, atol=1e-300)
        torch.testing.assert_close(q, batched.padded(wanted_q, draft, 1.0), rtol=1e-9, atol=1e-300)


def test_the_page_of_the_input_distribution_has_its_tables():
    page = (Path(__file__).parents[2] / "docs" / "inputs.md").read_text(encoding="utf-8")
    shown = [line for line in page.splitlines() if line.startswith("| ") and line.count("|") == 5][2:]
    assert shown == ["| " + " | ".join(row) + " |" for row in published()]
