"""The report of +exp=engines: one line a run, engines of several sweeps in one table."""

import json
import re

import pytest

from specbench.analysis import engines
from specbench.core.errors import ConfigError
from specbench.metrics.findings import OF_CHECKPOINT, OF_GREEDY, OF_TEXTS, REFUTED
from specbench.reports import markdown
from tests.helpers.command_lines import ROOT
from tests.helpers.made_up_rows import make_row, table_of, write_run


def sweep(folder, source, runs):
    """A sweep of runs: method, the verdict of each question, and the bound of both ways."""
    rows = [make_row(job=job, exp="engines", source=source) for job in range(len(runs))]
    write_run(folder, rows, empirical=False)
    for job, (method, verdicts, bound) in enumerate(runs):
        numbers = [
            {"texts": 1000, "nats_a_token": 2.0, "log10_evidence": 7.25, "observed": 0.01, "bound": bound},
            {"log10_evidence": 0.5, "bound": 0.012},
            {"forks_per_thousand": 3.5},
        ]
        findings = [
            {"question": question, "verdict": verdict, "numbers": values, "rows": {}}
            for question, verdict, values in zip((OF_TEXTS, OF_CHECKPOINT, OF_GREEDY), verdicts, numbers, strict=True)
            if verdict
        ]
        content = {"engine": f"{source} 1.0", "method": method, "sampling": {"temperature": 1.0}, "findings": findings}
        (folder / str(job) / "certificate.json").write_text(json.dumps(content))
    return folder


def test_engines_of_several_sweeps_stand_in_one_table(tmp_path):
    sound, fine = ("not refuted",) * 3, "not refuted"
    one = sweep(tmp_path / "a", "openvino", [("draft", (REFUTED, None, fine), 0.3), ("lookup", sound, 0.0402)])
    other = sweep(tmp_path / "b", "llama_server", [(None, sound, None)])
    specbench_sweep = sweep(tmp_path / "c", "specbench", [("masked", sound, 0.02)])
    report = engines.build(one, other, specbench_sweep)
    text = markdown.render(report)
    assert "1 of 4 runs refute their engine:** openvino 1.0, draft (T=1)." in text
    rows = {(row["engine"], row["method"]): row for row in table_of(text)}
    openvino = [("openvino 1.0", "draft"), ("openvino 1.0", "lookup")]
    assert list(rows) == [*openvino, ("llama_server 1.0", "-"), ("specbench 1.0", "masked")]
    draft, lookup = rows["openvino 1.0", "draft"], rows["openvino 1.0", "lookup"]
    assert draft["against plain texts"] == "refuted, 10^7.2"
    assert (draft["against the checkpoint"], lookup["against the checkpoint"]) == ("-", "not refuted, 10^0.5")
    assert (lookup["bias, at most"], lookup["bias, at most (scored)"], lookup["forks"]) == ("0.041", "0.012", "3.5")
    assert rows["llama_server 1.0", "-"]["bias, at most"] == "-"


def test_bounds_are_told_at_the_confidence_that_they_have(tmp_path):
    """Of protocol.power=0.9; 99% for certificates that do not tell it, as all did before."""
    folder = sweep(tmp_path / "a", "openvino", [("draft", ("not refuted",) * 3, 0.3)])
    assert "rarer), bounded at 99%; between" in markdown.render(engines.build(folder))
    path = folder / "0" / "certificate.json"
    content = json.loads(path.read_text())
    content["findings"][0]["numbers"]["confidence"] = 0.9
    path.write_text(json.dumps(content))
    assert "rarer), bounded at 90%; between" in markdown.render(engines.build(folder))


def _on_the_page(verdict: str) -> str:
    """Evidence alone, in bold if it refutes; a judge that cannot tell says so."""
    evidence = verdict.replace("999.0", "999").removeprefix("not refuted, ")
    return re.sub("^refuted, (.*)", r"**\1**", evidence)


def test_certificates_give_the_same_lines_as_their_folders():
    """Those on experiments/engines.md, whose figure they make."""
    page = (ROOT / "experiments/engines.md").read_text()
    listed = set(re.findall(r"^\|[^|]*\(engines/(\w+\.json)\)", page, re.MULTILINE))
    every = sorted((ROOT / "experiments/engines").glob("*.json"))
    files = [path for path in every if path.name in listed]
    assert [path.stem for path in every if path not in files] == ["llama_cpp_python_again"]  # mentioned in a sentence
    report = engines.build(*files)
    rows = table_of(markdown.render(report))
    assert [row["certificate"] for row in rows] == [path.name for path in files]
    for row in rows:
        (line,) = [line for line in page.splitlines() if f"(engines/{row['certificate']})" in line]
        method, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        texts = re.sub(r"(T=[\d.]+) ", r"\1, ", row["texts"]).removesuffix(" nats a token")
        plain, scored = (_on_the_page(row[f"against {other}"]) for other in ("plain texts", "the checkpoint"))
        assert cells == [texts, plain, row["bias, at most"], scored, row["bias, at most (scored)"]]
        assert method.partition("; greedy: ")[2].strip("*") == row["temperature 0"].replace("not refuted", "")
    (picture,) = report.pictures
    assert len(picture.figure.axes[0].patches) == len(files)


def test_files_that_are_no_certificates_are_refused(tmp_path):
    (tmp_path / "a.json").write_text('{"verdict": "refuted"}')
    with pytest.raises(ConfigError, match=r"a\.json: no certificate of an engine .*Give certificate\.json"):
        engines.build(tmp_path / "a.json")
    with pytest.raises(ConfigError, match="a file beside folders"):
        engines.build(tmp_path, tmp_path / "a.json")
