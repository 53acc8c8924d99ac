"""Rows of LogitRows by number and by slice."""

import torch

from specbench.core.mask import Mask
from specbench.core.types import LogitRows


def test_a_slice_selects_what_its_numbers_do():
    """With and without a mask, of which two rows share a set."""
    logits = torch.arange(12.0).view(4, 3)
    numbers = torch.arange(4.0)
    mask = Mask(torch.tensor([True, True]), torch.tensor([[0b011], [0b110]], dtype=torch.int32), 2)
    for allowed in (None, mask):
        rows = LogitRows(logits, numbers, numbers - 1, numbers + 1, allowed)
        one, other = rows.select(slice(1, 3)), rows.select(torch.tensor([1, 2]))
        for name in ("logits", "temperature", "cutoff", "log_normalizer"):
            assert torch.equal(getattr(one, name), getattr(other, name))
        assert torch.equal(one.with_mask_applied().logits, other.with_mask_applied().logits)
    assert one.with_mask_applied().logits.tolist() == [[3.0, 4.0, -torch.inf], [-torch.inf, 7.0, 8.0]]
