"""What ranks tell each other, on two forked processes that have no model."""

from specbench.core.errors import ConfigError
from specbench.core.machine import ranks
from specbench.core.machine.ranks import RankError
from tests.helpers.forked_ranks import on_ranks


def outcome(call):
    """What a call returns, or the words of its error."""
    try:
        return call()
    except (ConfigError, RankError) as error:
        return f"{type(error).__name__}: {error}"


def raised(message):
    raise ConfigError("key", 1, message, "Mend it.")


def test_rank_0_decides_for_all():
    """One that decided by itself would take another number of rounds, and wait for ever."""

    def work(rank):
        return [
            ranks.broadcast_from_rank0(lambda: rank + 5),
            ranks.broadcast_from_rank0(lambda: [rank]),
            outcome(lambda: ranks.broadcast_from_rank0(lambda: raised("bad"))),
        ]

    first, second = on_ranks(work)
    assert first == [5, [0], "ConfigError: key=1: bad. Mend it."]
    assert second == [5, [0], "RankError: key=1: bad. Mend it."]


def test_what_fails_on_one_rank_fails_on_all_with_the_same_words():
    """The first is not left waiting for the second in the next layer; nor are two that fail alike told apart."""

    def work(rank):
        one = outcome(lambda: ranks.together(lambda: raised("no room") if rank == 1 else "loaded"))
        both = outcome(lambda: ranks.together(lambda: raised("no file")))
        return [one, both, ranks.together(lambda: rank)]

    first, second = on_ranks(work)
    words = ["RankError: rank 1: key=1: no room. Mend it.", "RankError: key=1: no file. Mend it."]
    assert first == [*words, 0]
    assert second == [*words, 1]


def test_a_rank_that_waits_hears_that_another_has_failed():
    """And in the next job they are in step again, though one of them had told more."""

    def work(rank):
        ranks.begin("job 0")
        if rank == 0:
            ranks.broadcast_from_rank0(lambda: "told before")
            ended = ranks.outcomes("key=1: bad", 60.0)
        else:
            assert ranks.broadcast_from_rank0(lambda: "") == "told before"
            waited = outcome(lambda: ranks.broadcast_from_rank0(lambda: "never"))
            ended = ranks.outcomes(waited, 60.0)
        ranks.begin("job 1")
        return ended, ranks.broadcast_from_rank0(lambda: "next")

    first, second = on_ranks(work)
    assert first == second == ({0: "key=1: bad", 1: "RankError: rank 0: key=1: bad"}, "next")


def test_a_silent_rank_is_waited_for_no_longer_than_asked():
    first, _ = on_ranks(lambda rank: ranks.outcomes("", 0.1) if rank == 0 else None)
    assert first == {0: ""}
