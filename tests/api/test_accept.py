"""``specbench.from_accept``: an accept function of one request as a verifier. test_verifiers.py has it among others."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import specbench
from specbench.core.errors import ArgumentError, ModelError, SpecbenchError
from specbench.core.types import PADDING
from specbench.exactness import suite
from specbench.exactness.fixtures import small_fixtures
from specbench.exactness.settings import LEAST_EFFORT, RequestBudget
from specbench.models import Pair
from specbench.rules.token.naive import NaiveVerifier
from tests.api.test_certify import SMALL
from tests.helpers.cases import ragged_case

COUNTS = [0, 4, 1, 3]


def by_numpy(p: Any, q: Any, token_ids: Any, uniforms: Any) -> tuple[int, Any]:
    """The token rule. Counts as plain Python, ids as numpy's."""
    for i, token in enumerate(token_ids):
        if uniforms[i] * q[i, token] >= p[i, token]:
            return i, drawn(np.maximum(p[i] - q[i], 0), uniforms[-1])
    return len(token_ids), drawn(p[-1], uniforms[-1])


def drawn(weights: np.ndarray, u: float) -> Any:
    cumulative = weights.cumsum()
    return np.searchsorted(cumulative, u * cumulative[-1], side="right")


def by_torch(p: Tensor, q: Tensor, token_ids: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """The token rule. The count and the id as PyTorch's, of one element."""
    chosen = torch.arange(len(token_ids))
    accepted = (uniforms[:-1] * q[chosen, token_ids] < p[chosen, token_ids]).cumprod(0).sum()
    weights = p[accepted] if accepted == len(token_ids) else (p[accepted] - q[accepted]).clamp(min=0)
    cumulative = weights.cumsum(0)
    return accepted, torch.searchsorted(cumulative, uniforms[-1:] * cumulative[-1], side="right")


def biased(p: Any, q: Any, token_ids: Any, uniforms: Any) -> tuple[int, Any]:
    """A refused token is replaced by a plain draw from the target."""
    accepted, _ = by_numpy(p, q, token_ids, uniforms)
    return accepted, drawn(p[accepted], uniforms[-1])


def by_itself(p: Any, q: Any, token_ids: Any) -> tuple[int, Any]:
    return by_numpy(p, q, token_ids, np.random.default_rng().random(len(p)))


@pytest.mark.parametrize("arrays", ["numpy", "torch"])
def test_a_function_receives_dense_rows_and_as_many_uniforms(arrays):
    received = []

    def accept(p: Any, q: Any, token_ids: Any, uniforms: Any) -> tuple[int, int]:
        parts = (p, q, token_ids, uniforms)
        assert {type(part) for part in parts} == {np.ndarray if arrays == "numpy" else Tensor}
        received.append([torch.as_tensor(part) for part in parts])
        return 0, 0

    draft, target, streams = ragged_case(COUNTS, vocabulary=23)
    specbench.from_accept(accept, arrays=arrays).verify(draft, target, streams)
    assert [[tuple(part.shape) for part in request] for request in received] == [
        [(g + 1, 23), (g, 23), (g,), (g + 1,)] for g in COUNTS
    ]
    assert {tuple(part.dtype for part in request) for request in received} == {
        (torch.float64, torch.float64, torch.int64, torch.float64)
    }
    assert torch.equal(torch.cat([p for p, *_ in received]), target.probs())
    assert torch.equal(torch.cat([ids for _, _, ids, _ in received]), draft.token_ids)


@pytest.fixture
def one_fixture(monkeypatch: pytest.MonkeyPatch, unchecked: None) -> None:
    """The fixture "chain" alone, with the least effort to locate thresholds."""
    kept = tuple(fixture for fixture in small_fixtures() if fixture.name == "chain")
    monkeypatch.setattr(suite, "small_fixtures", lambda: kept)
    monkeypatch.setattr(RequestBudget, "effort", LEAST_EFFORT)


@pytest.mark.thorough
@pytest.mark.usefixtures("one_fixture")
def test_a_certificate_locates_the_thresholds_of_a_function():
    """It names no rule, so that its boxes can only come from the uniforms that it receives."""
    sound = specbench.certify(specbench.from_accept(by_numpy), **SMALL)
    assert (sound.verdict, sound.verifier, sound.rule) == ("not rejected", "by_numpy", "own")
    assert {bound["method"] for bound in sound.bounds} == {"located"}
    assert max(bound["located"] for bound in sound.bounds) < 1e-9
    wrong = specbench.certify(specbench.from_accept(biased), **SMALL)
    assert wrong.headline == "not lossless: TV 0.16 a step on chain"


@pytest.mark.usefixtures("one_fixture")
def test_random_numbers_of_its_own_are_counted():
    verifier = specbench.from_accept(by_itself)
    assert verifier.draws_by_itself
    certificate = specbench.certify(verifier, **SMALL)
    assert certificate.verdict == "not rejected"
    assert {bound["method"] for bound in certificate.bounds} == {"counted"}


def test_a_function_decodes_the_texts_of_its_rule(pair: Pair):
    kwargs: dict[str, Any] = {"prompts": ["def add(a, b):\n", "import "], "gamma": 3, "max_new_tokens": 12, "seed": 5}
    verifier = specbench.from_accept(by_numpy, rule="token")
    assert specbench.decode(pair, verifier=verifier, **kwargs) == specbench.decode(pair, verifier="naive", **kwargs)


def test_rows_that_nothing_can_be_drawn_from_do_not_reach_the_function(pair: Pair, monkeypatch):
    """So that decoding names the model, as it does for every other verifier."""
    weight = pair.target.lm_head.weight
    spoilt = torch.nn.Parameter(torch.full_like(weight, torch.nan), False)
    monkeypatch.setitem(pair.target.lm_head._parameters, "weight", spoilt)  # its attribute would be deleted at the end
    with pytest.raises(ModelError, match="The target model returned NaN or infinite logits for prompt '0'"):
        specbench.decode(pair, "a b c", verifier=specbench.from_accept(by_numpy), max_new_tokens=4)


@pytest.mark.parametrize("arrays", ["numpy", "torch"])
@pytest.mark.parametrize("banned", ["target", "draft"])
def test_tokens_before_a_row_that_nothing_can_be_drawn_from_are_emitted(banned, arrays):
    """A row behind a refused token is of no consequence; one that is reached leaves the tokens accepted before it."""
    function = by_numpy if arrays == "numpy" else by_torch
    endings = set()
    for seed in range(6):
        for place in range(5 if banned == "target" else 4):
            draft, target, streams = ragged_case([4, 2], vocabulary=23, seed=seed)
            whole = NaiveVerifier().verify(draft, target, streams)
            (target if banned == "target" else draft.rows).logits[place] = torch.nan
            verified = specbench.from_accept(function, arrays=arrays).verify(draft, target, streams)
            reached = int(whole.num_accepted[0]) >= place
            expected = (
                [*draft.token_ids[:place].tolist(), *[PADDING] * 5][:5] if reached else whole.token_ids[0].tolist()
            )
            assert verified.token_ids[0].tolist() == expected
            assert verified.num_accepted[0] == min(place, int(whole.num_accepted[0]))
            assert torch.equal(verified.token_ids[1], whole.token_ids[1])
            endings.add((reached, place > 0))
    assert endings >= {(True, True), (False, True), (True, False)}


@pytest.mark.parametrize(
    "returned",
    [
        *(None, 3, (1,), (1, 2, 3), (0.5, 1), (5, 1), (-1, 1), (0, 23), (0, PADDING), (0, "a")),
        *((True, 1), (0, False), (np.True_, 1), (torch.tensor(True), 1)),
    ],
    ids=repr,
)
def test_what_is_no_outcome_of_the_request_is_named(returned):
    def accept(p: Any, q: Any, token_ids: Any, uniforms: Any) -> Any:
        return returned

    with pytest.raises(SpecbenchError) as raised:
        specbench.from_accept(accept).verify(*ragged_case([4], vocabulary=23))
    message = str(raised.value)
    assert message.startswith(
        f"accept returned {returned!r} for a request of 4 drafted tokens; it has to return (num_accepted, token). "
    )
    assert message.endswith("0 to 4 accepted tokens, and an id from 0 to 22.")
    assert not isinstance(raised.value, ArgumentError)  # by which a verifier refuses inputs


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"function": "block"}, "function: a str; give a function accept(p, q, token_ids, uniforms)"),
        ({"function": NaiveVerifier}, "function: the class NaiveVerifier; give a function"),
        ({"function": lambda p, q: (0, 0)}, "function: <lambda>(p, q); give accept(p, q, token_ids, uniforms)"),
        ({"function": by_numpy, "arrays": "jax"}, 'arrays=\'jax\': unknown. Use "numpy" or "torch".'),
        ({"function": by_numpy, "rule": None}, "rule=None: no name."),
        ({"function": by_numpy, "lossless": "yes"}, "lossless='yes': use True or False"),
    ],
    ids=["name", "class", "two arguments", "arrays", "rule", "lossless"],
)
@pytest.mark.usefixtures("unchecked")
def test_from_accept_names_a_wrong_argument(arguments, says):
    with pytest.raises(ArgumentError) as raised:
        specbench.from_accept(**arguments)
    assert str(raised.value).startswith(says)


@pytest.mark.parametrize("arrays", ["numpy", "torch"])
def test_a_function_may_write_into_its_arguments(arrays):
    """The accepted tokens are the drafted ones, and the draft stays as it was."""

    def accept(p: Any, q: Any, token_ids: Any, uniforms: Any) -> tuple[int, int]:
        token_ids[:] = 0
        return len(token_ids), 0

    draft, target, streams = ragged_case(COUNTS, vocabulary=23)
    before = draft.token_ids.clone()
    verified = specbench.from_accept(accept, arrays=arrays).verify(draft, target, streams)
    assert torch.equal(draft.token_ids, before)
    accepted = [row[:count] for row, count in zip(verified.token_ids, verified.num_accepted.tolist(), strict=True)]
    assert torch.equal(torch.cat(accepted), before)
