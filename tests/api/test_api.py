"""The Python API: names that import nothing heavy, and arguments that are named as they were given."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import specbench
from specbench.core.errors import ConfigError
from specbench.core.naming import renamed
from specbench.runs.choices import chosen, names
from tests.helpers.command_lines import ROOT


def fresh(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_importing_specbench_imports_nothing_heavy():
    heavy = "torch", "transformers", "numpy", "pandas", "hydra", "matplotlib"
    assert fresh(f"import sys, specbench; print([name for name in {heavy} if name in sys.modules])") == "[]"


def test_every_public_name_is_there_and_is_what_type_checkers_are_told():
    assert sorted(specbench.__all__) == sorted({*specbench._HOMES, "replay", "__version__"})
    tree = ast.parse((ROOT / "specbench" / "__init__.py").read_text())
    (checking,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    modules = {
        alias.name: node.module for node in checking.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    homes = {name: f"specbench.{home}" for name, home in specbench._HOMES.items()}
    assert modules == homes | {"replay": "specbench.replay.call"}
    for name in specbench.__all__:
        assert name in dir(specbench)
        assert getattr(specbench, name).__doc__ or name == "__version__"
    with pytest.raises(AttributeError, match="no attribute 'verifyy'"):
        specbench.verifyy  # noqa: B018


def test_notebooks_show_the_arguments_of_replay_which_is_a_room_as_well():
    from specbench.replay import call

    assert inspect.signature(specbench.replay) == inspect.signature(call.replay)
    assert "help(specbench.replay.call.replay)" in (specbench.replay.__doc__ or "")


@pytest.mark.parametrize("before", ["", "import specbench.replay.trace; ", "from specbench import replay; "])
def test_replay_is_a_function_and_a_room_whatever_was_imported_before(before):
    """Importing a module of a room binds the room's name in the package, where the function would have been."""
    code = f"{before}import specbench\ntry:\n    specbench.replay('nope.parquet', 'block', [1])\nexcept Exception as e:"
    assert "nope.parquet" in fresh(f"{code}\n    print(e)\nfrom specbench.replay.trace import Trace")


@pytest.mark.parametrize("name", [name for name in specbench.__all__ if name[0].islower()])
def test_functions_have_docstrings_that_stand_alone(name):
    from specbench.replay import call

    function = call.replay if name == "replay" else getattr(specbench, name)
    for part in ("Args:", "Returns:", "Raises:", "Example:"):
        assert part in function.__doc__


OURS = [name for name in names("verifier") if not name.startswith("external/") and name != "flawed"]


@pytest.mark.parametrize("name", [*OURS, "flawed/lenient"])
def test_every_verifier_of_conf_is_built_by_its_name(name):
    assert callable(chosen("verifier", name).verify)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"target": "/none"}, "target=/none: "),
        ({"target": None}, "target=None: not the name of a model. Use a folder, a hub id"),
        ({"target": 3}, "target=3: not the name of a model"),
        ({"target": Path("/none")}, "target=/none: "),
        ({"target": "embedded:target", "draft": 3}, "draft=3: not the name of a model"),
        ({"target": "embedded:target", "thinking_tokens": [1, 2]}, "thinking_tokens=[1, 2]: not two different texts"),
        ({"target": "embedded:target", "thinking_tokens": 3}, "thinking_tokens=3: not two different texts"),
        ({"target": "embedded:target", "download": "no"}, "download=no: neither true nor false"),
        ({"target": "embedded:target", "dtype": "int8"}, "dtype=int8: "),
        ({"target": "embedded:target", "draft_dtype": "int8"}, "draft_dtype=int8: "),
        ({"target": "embedded:target", "thinking": True}, "thinking=True: "),
        ({"target": "embedded:target", "chat": True}, "chat=True: the target's tokenizer has no chat template. Use"),
        ({"target": "embedded:target", "vocabularies": "all"}, "vocabularies=all: "),
    ],
    ids=str,
)
def test_load_pair_names_its_arguments_and_no_keys_of_the_command_line(arguments, says):
    with pytest.raises(ConfigError) as raised:
        specbench.load_pair(**arguments)
    assert str(raised.value).startswith(says)
    assert "pair." not in str(raised.value)
    assert raised.value.key == says.partition("=")[0]


def test_only_keys_are_renamed():
    message = "pair.target=/a/pair.target/x: no. Use pair.chat=false, or pair.draft=null; see conf/pair.yaml, repair.it"
    assert renamed(message, {"pair.": ""}) == (
        "target=/a/pair.target/x: no. Use chat=False, or draft=None; see conf/pair.yaml, repair.it"
    )
