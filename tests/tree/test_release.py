"""A release: one version in every place that names it, and workflows that run the commands of the Makefile."""

import re
import tomllib
from typing import Any

import pytest
import yaml

from specbench import __version__
from tests.helpers.command_lines import ROOT

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text()
RELEASE = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())


def citation() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "CITATION.cff").read_text())


def steps(workflow: dict[str, Any]) -> list[dict[str, str]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def test_the_version_is_written_once_and_named_alike_elsewhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" in project["project"]["dynamic"]
    assert project["tool"]["hatch"]["version"]["path"] == "specbench/__init__.py"
    assert citation()["version"] == __version__
    headings = re.findall(r"^## \[(.*?)\](?: - (\S+))?$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    versions = [(version, day) for version, day in headings if version != "Unreleased"]
    assert versions[0] == (__version__, str(citation()["date-released"])), "the newest release of CHANGELOG.md"


def commands(workflow: dict[str, Any]) -> list[str]:
    """What its steps run, with the values of a matrix in the place of their names."""
    ran = [step["run"] for step in steps(workflow) if "run" in step]
    rows = [
        row for job in workflow["jobs"].values() for row in job.get("strategy", {}).get("matrix", {}).get("include", ())
    ]
    return [command for command in ran if "${{" not in command] + [row["run"] for row in rows]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_targets_of_the_makefile(path):
    targets = re.findall(r"^([\w-]+(?: [\w-]+)*):", MAKEFILE, flags=re.MULTILINE)
    targets = {name for line in targets for name in line.split()}
    made = [command.split()[1] for command in commands(yaml.safe_load(path.read_text())) if command.startswith("make ")]
    assert made
    assert set(made) <= targets


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_use_actions_by_commit_and_may_read_alone(path):
    """A tag can be moved to other code; a commit cannot."""
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    for step in steps(workflow):
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step.get("uses", f"none@{'0' * 40}")), step


def test_only_the_last_job_of_a_release_can_publish_and_only_what_was_tried():
    jobs = RELEASE["jobs"]
    assert [name for name, job in jobs.items() if "permissions" in job] == ["publish"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["environment"] == "pypi"
    assert jobs["publish"]["needs"] == "try"
    assert jobs["try"]["needs"] == "build"
    assert not any("run" in step for step in jobs["publish"]["steps"])
    assert "secrets." not in (ROOT / ".github/workflows/release.yml").read_text()
    supported = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    assert jobs["try"]["strategy"]["matrix"]["python"] == supported


def test_the_container_has_a_pinned_base_and_no_root():
    lines = (ROOT / "Containerfile").read_text().splitlines()
    (base,) = [line.split()[1] for line in lines if line.startswith("FROM ")]
    assert re.fullmatch(r"nvidia/cuda:\d+\.\d+\.\d+-base-ubuntu\d+\.\d+", base)
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert users == ["1000:1000"]
    assert next(line for line in lines if line.startswith(("USER", "RUN specbench"))).startswith("USER")
