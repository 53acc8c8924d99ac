"""What errors call a part of a run: as a user would ask for it."""

import pytest

from specbench.core.conf import config_name
from specbench.drafters import Drafter
from specbench.drafters.prompt_lookup import PromptLookupDrafter
from specbench.drafters.tree import TopTreeDrafter
from specbench.rules.external.transformers import TransformersVerifier
from specbench.rules.fused import FusedVerifier
from specbench.rules.token.masked import MaskedVerifier


class Own(Drafter):
    """A drafter of a user's own, which no yaml of conf names."""


class MaskedVerifierOfMine(MaskedVerifier):
    """Not the one of conf."""


@pytest.mark.parametrize(
    ("group", "part", "name"),
    [
        ("verifier", MaskedVerifier(), "masked"),
        ("verifier", TransformersVerifier(), "external/transformers"),
        ("verifier", MaskedVerifierOfMine(), "MaskedVerifierOfMine"),
        ("verifier", FusedVerifier(block=True), "FusedVerifier"),  # fused and block_fused are of one class
        ("drafter", PromptLookupDrafter(), "prompt_lookup"),
        ("drafter", TopTreeDrafter([2]), "top_tree"),
        ("drafter", Own(), "Own"),
    ],
)
def test_a_part_is_called_by_its_name_in_conf(group, part, name):
    assert config_name(group, part) == name
