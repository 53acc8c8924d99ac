"""Streams: the generator is Philox, its uniforms are open, and every coordinate of the counter matters."""

import numpy as np
import pytest
import torch

from specbench.core.rng import Stream, Streams, philox, to_uniform

# Known answers published with Random123 (Salmon et al.), kat_vectors, philox4x32-10.
KNOWN = [
    ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0xA4093822, 0x299F31D0),
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("key", "counter", "expected"), KNOWN)
@pytest.mark.parametrize("array", [lambda word: torch.tensor([word]), lambda word: np.array([word])])
def test_philox_matches_published_answers(array, key, counter, expected):
    words = philox((array(key[0]), array(key[1])), tuple(array(word) for word in counter))
    assert [int(word[0]) for word in words] == list(expected)


def test_uniforms_stay_inside_the_open_interval():
    extremes = torch.tensor([0, 0xFFFFFFFF])
    low, high = to_uniform(extremes, extremes).tolist()
    assert 0 < low < 1e-15
    assert 1 - 1e-15 < high < 1


def test_every_coordinate_gives_other_numbers():
    seeds, positions = torch.tensor([1, 2, 1, 1 + 2**32]), torch.tensor([5, 5, 6, 5])
    streams = Streams(seeds, positions, 8)
    values = torch.cat([streams.uniform(stream).flatten() for stream in Stream])
    assert values.unique().numel() == 4 * 8 * len(Stream)


def test_numbers_do_not_depend_on_batch_or_width():
    wide = Streams(torch.tensor([3, 4]), torch.tensor([10, 20]), 9)
    alone = Streams(torch.tensor([4]), torch.tensor([20]), 2)
    assert torch.equal(wide.uniform(Stream.EMIT)[1, :2], alone.uniform(Stream.EMIT)[0])


def test_seeds_and_positions_beyond_their_range_are_those_of_their_lowest_bits():
    seeds, positions = torch.tensor([7, 7, 7]), torch.tensor([2**32 - 1, 0, 5])
    beyond = Streams(seeds, torch.tensor([-1, 2**32, 2**63 - 2**32 + 5]), 4)
    assert torch.equal(beyond.uniform(Stream.ACCEPT), Streams(seeds, positions, 4).uniform(Stream.ACCEPT))
    signed = torch.tensor([-1, 2**63 - 1, -(2**63), 0])  # the sign is a bit like others
    values = Streams(signed, torch.zeros_like(signed), 4).uniform(Stream.ACCEPT)
    assert values.unique().numel() == 16
    assert ((values > 0) & (values < 1)).all()


def test_uniforms_are_uniform_and_uncorrelated_between_streams():
    # 60,000 draws: the mean's standard error is 0.0012, a correlation's 0.004; 6 sigma is a false alarm below 1e-8.
    streams = Streams(torch.arange(20_000), torch.zeros(20_000, dtype=torch.int64), 3)
    draws = torch.stack([streams.uniform(stream).flatten() for stream in Stream])
    assert (draws.mean(dim=1) - 0.5).abs().max() < 6 * 0.0012
    assert (torch.corrcoef(draws) - torch.eye(len(Stream), dtype=torch.float64)).abs().max() < 6 * 0.0041
