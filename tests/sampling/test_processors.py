"""Processors change p and q by what precedes each position, drafted tokens included, wherever p or q is needed."""

from dataclasses import dataclass

import pytest
import torch

from specbench.core.errors import ArgumentError, ConfigError
from specbench.decoding import logits_along, rows_along
from specbench.models import CachedModel
from specbench.protocols.scoring import columns_of
from specbench.sampling import History, RowParams, SamplingParams, logit_rows


@dataclass(frozen=True)
class FrequencyPenalty:
    """Takes ``penalty`` from a token's logit for each time that it came before."""

    penalty: float

    def __call__(self, logits, history):
        return logits - self.penalty * history.counts(logits.shape[1]).to(logits.dtype)


STRONG = FrequencyPenalty(3.0)


def test_history_holds_the_text_and_the_drafted_tokens_before_each_position():
    texts_of = torch.tensor([[5, 6, 9, 9], [7, 7, 8, 9]])  # nines lie beyond the end
    history = History(
        texts_of, torch.tensor([1, 3]), torch.tensor([2, 3]), torch.tensor([[1, 2], [7, 4]]),
        torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0, 1, 2, 0, 2]),
    )  # fmt: skip
    assert [[t for t in row if t >= 0] for row in history.tokens.tolist()] == [
        [5, 6], [5, 6, 1], [5, 6, 1, 2], [7, 7, 8], [7, 7, 8, 7, 4]
    ]  # fmt: skip
    assert history.lengths.tolist() == [2, 3, 4, 3, 5]
    assert history.counts(10)[4].tolist() == [0, 0, 0, 0, 1, 0, 0, 3, 1, 0]


def test_a_scored_text_has_the_probabilities_that_it_was_drawn_with(pair):
    """One pass over the text gives log p of each token as a step of plain Python does."""
    prompt, text = pair.encode("def mean(values):"), pair.encode("\n    return sum(values) / len(values)")
    engine = CachedModel(pair.target, pair.vocab_size, "target")
    sampling = SamplingParams(temperature=0.8, top_k=300, processors=(STRONG,))
    logits = logits_along(engine, [prompt], [text])[0]
    got = columns_of(logits, logits, torch.tensor(text), sampling, prompt)["log_p"]
    for i, token in enumerate(text):
        seen = torch.bincount(torch.tensor([*prompt, *text[:i]]), minlength=pair.vocab_size)
        plain = SamplingParams(temperature=0.8, top_k=300)
        row = logit_rows((logits[i] - 3.0 * seen)[None], RowParams.of([plain]))
        assert float(got[i]) == pytest.approx(float(row.prob(torch.tensor([token])).log()), abs=1e-4)
    late = rows_along(logits[5:7], sampling, prompt, text, first=5)
    assert torch.equal(late.logits, rows_along(logits, sampling, prompt, text).logits[5:7])


class InPlace:
    """Bans a token as many processors do: in the logits that it is given."""

    def __call__(self, logits, history):
        logits[:, 1] = -torch.inf
        return logits


def test_a_processor_that_writes_to_its_logits_changes_no_other_request():
    logits = torch.zeros(2, 4)
    params = RowParams.of([SamplingParams(processors=(InPlace(),)), SamplingParams()])
    ones, nothing = torch.ones(2, dtype=torch.int64), torch.zeros(2, 1, dtype=torch.int64)
    history = History(nothing, ones, ones, nothing, torch.arange(2), torch.zeros(2, dtype=torch.int64))
    shaped = logit_rows(logits, params, history).logits
    assert shaped[0].tolist() == [0, -torch.inf, 0, 0]
    assert not shaped[1].any()
    assert not logits.any()


@pytest.mark.parametrize(
    ("kind", "rows", "how"),
    [
        ("other rows", 3, "for a row alone than for it among 3"),
        ("first row", 3, "for a row alone than for it among 3"),
        ("calls before", 1, "for the same row a second time"),
        ("randomness", 3, "for a row alone"),
    ],
)
def test_a_row_that_depends_on_more_than_itself_is_refused(kind, rows, how):
    """At the first call: texts would depend on what is decoded beside them, and on how often."""

    class Wrong:
        calls = 0

        def __call__(self, logits, history):
            self.calls += 1
            added = {
                "other rows": logits.mean(0),
                "first row": logits[0],
                "calls before": self.calls,
                "randomness": torch.rand(4),
            }
            return logits + added[kind] * torch.arange(4)

    with pytest.raises(ArgumentError, match=f"^Wrong returns other logits {how}"):
        rows_along(
            torch.arange(4.0 * rows).view(rows, 4), SamplingParams(processors=(Wrong(),)), [0], [1, 2][: rows - 1]
        )


def test_one_row_at_first_does_not_hide_what_several_show():
    """As in plain decoding of one text, where a mean over rows is the row's own."""
    sampling = SamplingParams(processors=(lambda logits, history: logits - logits.mean(0),))
    rows_along(torch.arange(4.0).view(1, 4), sampling, [0], [])
    with pytest.raises(ArgumentError, match="for it among 2"):
        rows_along(torch.arange(8.0).view(2, 4), sampling, [0], [1])


@pytest.mark.parametrize("slots", [False, True])
def test_a_processor_is_tried_once_at_the_last_row_that_it_changes(slots):
    """Rows of other requests may hold anything, and the second call costs as much as the first."""
    calls = []

    @dataclass(eq=False, slots=slots)
    class Counting:
        def __call__(self, logits, history):
            calls.append((len(logits), history.tokens.tolist(), len(history.text_lengths)))
            return logits.relu()

    ones = torch.ones(3, dtype=torch.int64)
    params = RowParams.of([SamplingParams(), SamplingParams(processors=(Counting(),)), SamplingParams()])
    texts, nothing = torch.tensor([[5], [7], [9]]), torch.zeros(3, 0, dtype=torch.int64)
    history = History(texts, ones, ones, nothing, torch.arange(3), torch.zeros(3, dtype=torch.int64))
    logits = torch.tensor([[torch.nan] * 4, [-1.0, 0, 1, 2], [torch.nan] * 4])
    others = torch.tensor([0, 2, 0])
    logit_rows(logits[others], params.select(others), history)
    assert len(calls) == 1
    calls.clear()
    for _ in range(2):
        logit_rows(logits, params, history)
    assert calls == [(3, [[5], [7], [9]], 3), (1, [[7]], 1), (3, [[5], [7], [9]], 3)]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("processors", "says"),
    [
        ([3], "processors=int: not callable"),
        (5, "processors=5: not a list"),
        (
            [dataclass(type("Unhashable", (), {"__call__": lambda self, logits, history: logits}))()],
            "le: no hash. Write",
        ),
    ],
)
def test_what_is_no_list_of_processors_is_refused(processors, says):
    with pytest.raises(ConfigError, match=says):
        SamplingParams(processors=processors)


def test_who_cannot_say_what_precedes_is_refused():
    params = RowParams.of([SamplingParams(processors=(STRONG,))])
    with pytest.raises(ArgumentError, match="history: None; FrequencyPenalty needs to know what precedes"):
        logit_rows(torch.zeros(1, 4), params)


@pytest.mark.parametrize(
    ("returned", "says"),
    [(None, "returned NoneType"), (torch.zeros(1, 3), r"\(1, 3\)"), (torch.zeros(1, 4).double(), "float64")],
    ids=["nothing", "another shape", "another dtype"],
)
def test_a_processor_returns_logits_like_those_it_was_given(returned, says):
    class Wrong:
        def __call__(self, logits, history):
            return returned

    with pytest.raises(ArgumentError, match=says):
        rows_along(torch.zeros(1, 4), SamplingParams(processors=(Wrong(),)), [0], [])
