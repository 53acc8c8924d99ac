"""Shapes and dtypes of every annotated function in specbench are checked while the tests run."""

from jaxtyping import install_import_hook

hook = install_import_hook("specbench", "beartype.beartype")

import pytest  # noqa: E402
import torch  # noqa: E402

from specbench.models import Pair, load_pair  # noqa: E402


@pytest.fixture(scope="session")
def pair() -> Pair:
    """The embedded pair, in float32 on the CPU."""
    return load_pair("embedded:target", "embedded:draft", device="cpu")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
