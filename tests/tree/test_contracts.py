"""Every room of specbench/ has its place in the layers of pyproject.toml, which `lint-imports` holds imports to.

And what functions say of shapes and dtypes is checked while the tests run.
"""

import ast
import re
import tomllib

import jaxtyping
import pytest
import torch
from beartype import beartype
from jaxtyping import Float64

from specbench.sampling import inverse_cdf
from tests.helpers import shape_checks
from tests.helpers.command_lines import ROOT

CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


def rooms() -> set[str]:
    """The modules and packages directly in specbench/."""
    paths = (
        path for path in (ROOT / "specbench").iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()
    )
    return {f"specbench.{path.stem}" for path in paths if path.stem != "__init__"}


def test_every_room_is_in_a_layer_and_every_layer_is_of_rooms():
    """A room in no layer may import anything, and be imported by anything."""
    (layers,) = [contract["layers"] for contract in CONTRACTS if contract["type"] == "layers"]
    named = [re.split(r"\s*[|:]\s*", layer) for layer in layers]
    placed = {".".join(module.split(".")[:2]) for layer in named for module in layer}
    assert rooms() - placed == set(), "without a layer"
    assert placed - rooms() == set(), "no longer there"


def test_every_folder_with_modules_is_a_package():
    """import-linter leaves out a folder without an __init__.py, and all that its files import."""
    folders = {path.parent for room in ("specbench", "analysis") for path in (ROOT / room).rglob("*.py")}
    assert len(folders) > 40
    assert {str(folder) for folder in folders if not (folder / "__init__.py").is_file()} == set()


def test_names_say_what_a_thing_is():
    """A loop variable is the singular of what it runs over, a result a noun: see CONTRIBUTING.md."""
    vague = {"each", "found", "told", "asked", "said"}
    files = [path for room in ("specbench", "analysis", "experiments", "tests") for path in (ROOT / room).rglob("*.py")]
    named = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {name}"
        for path in files
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (name := _bound(node, attributes=path.relative_to(ROOT).parts[0] != "tests")) in vague
    ]
    assert len(files) > 600
    assert named == []


def test_sentences_have_nouns():
    """Words that stand for someone or for a number make a reader look for it: see CONTRIBUTING.md."""
    vague = re.compile(r"\b(nobody|whoever|somebody|so many)\b", re.IGNORECASE)
    paths = [path for room in ("specbench", "analysis", "conf", "docs") for path in (ROOT / room).rglob("*")]
    texts = {path: path.read_text(encoding="utf-8") for path in paths if path.suffix in (".py", ".md", ".yaml")}
    assert len(texts) > 500
    assert {str(path): vague.findall(text) for path, text in texts.items() if vague.search(text)} == {}


def _bound(node: ast.AST, attributes: bool) -> str | None:
    """The name that a node binds; None if it binds none. Attributes of stand-ins in tests are left alone."""
    match node:
        case ast.Attribute(attr=name, ctx=ast.Store()) if attributes:
            return name
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.FunctionDef(name=name):
            return name
    return None


def test_what_only_some_may_import_is_forbidden_to_every_room():
    """Also to those that are new; the exceptions are named one by one."""
    for library in ("hydra", "omegaconf", "wandb", "transformers"):
        sources = [
            contract["source_modules"] for contract in CONTRACTS if library in contract.get("forbidden_modules", ())
        ]
        assert ["specbench.*", "analysis"] in sources, library


@pytest.mark.parametrize("u", [torch.rand(3, dtype=torch.float64), torch.rand(2)], ids=["shape", "dtype"])
def test_shapes_and_dtypes_are_checked_while_the_tests_run(u: torch.Tensor):
    with pytest.raises(jaxtyping.TypeCheckError):
        inverse_cdf(torch.ones(2, 4, dtype=torch.float64), u)


def test_of_many_calls_the_first_and_some_later_ones_are_checked():
    @jaxtyping.jaxtyped(typechecker=beartype)
    def length(values: Float64[torch.Tensor, " n"]) -> int:
        return len(values)

    refused = 0
    for _ in range(2 * shape_checks.STRIDE):
        try:
            length(torch.zeros(3))
        except jaxtyping.TypeCheckError:
            refused += 1
    assert refused == shape_checks.FIRST + 2


def test_tests_import_analyses_by_the_package_whose_types_are_checked():
    """A function of gamma_sweep got numpy's int for an int, and no test saw it."""
    files = list((ROOT / "tests").rglob("*.py"))
    assert len(files) > 200
    unchecked = r"^\s*(from|import) analysis\b"
    assert not [path.name for path in files if re.search(unchecked, path.read_text(encoding="utf-8"), re.MULTILINE)]
