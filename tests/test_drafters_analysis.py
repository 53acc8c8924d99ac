"""The report of +exp=drafters: each category gets its own prompts' steps and times."""

import dataclasses

import pytest

from analysis import drafters
from specbench.protocols.rounds import ROUND_SCHEMA, ROUNDS
from specbench.reports import markdown
from specbench.results import STEP_SCHEMA, STEPS, TEXT_SCHEMA, TEXTS, write_rows
from specbench.workloads import load_prompts
from tests.made_up_rows import make_row, write_run

CATEGORIES = {"a": "copy", "b": "new", "c": "copy", "d": "new"}
ACCEPTED = {"copy": 3, "new": 1}  # of 4 drafted tokens
SECONDS = {"copy": 0.5, "new": 2.0}  # plainly 1


def folder(path, categories, group=1, **changes):
    """Two drafters whose prompts accept and take what their category says; the second drafter drafts nothing."""
    rows = [
        make_row(job=job, drafter=name, group=group, exp="drafters", temperature=0.0, **changes)
        for job, name in enumerate(("model", "prompt_lookup"))
    ]
    write_run(path, rows, empirical=False)
    for row in rows:
        job, drafted = path / str(row.job), 4 if row.drafter == "model" else 0
        accepted = {name: ACCEPTED[CATEGORIES[name]] if drafted else 0 for name in categories}
        steps = [
            {"prompt": name, "step": i, "num_draft_tokens": drafted, "num_accepted": accepted[name]}
            | {"num_emitted": accepted[name] + 1, "draft_depth": drafted, **labels(name, category)}
            for name, category in categories.items()
            for i in range(5)
        ]
        texts = [
            {"prompt": name, "text": "x", "completion": "y", "tokens": 10, "finished": "length"}
            | labels(name, category)
            for name, category in categories.items()
        ]
        times = [
            {"round": n, "batch": batch, "way": way, "tokens": 10, "seconds": 1.0 if way == "plain" else speed}
            for n in range(2)
            for batch, speed in enumerate(SECONDS[CATEGORIES[name]] for name in categories)
            for way in ("plain", "speculative")
        ]
        for name, lines, schema in (
            (STEPS, steps, STEP_SCHEMA),
            (TEXTS, texts, TEXT_SCHEMA),
            (ROUNDS, times, ROUND_SCHEMA),
        ):
            write_rows(job / name, lines, schema)
    return path


def labels(prompt: str, category: str | None) -> dict[str, object]:
    return {"category": category, "conversation": prompt, "turn": 1}


def test_categories_have_their_own_prompts(tmp_path):
    report = drafters.build(folder(tmp_path, CATEGORIES))
    overall, parts = report.tables
    lines = {(row["category"], row["drafter"]): row for _, row in parts.shown.iterrows()}
    assert lines["copy", "model"]["speedup"].startswith("2.00")
    assert lines["new", "model"]["speedup"].startswith("0.50")
    assert lines["copy", "model"]["acceptance length"].startswith("4.00")
    assert lines["new", "model"]["acceptance length"].startswith("2.00")
    assert lines["new", "model"]["acceptance rate"].startswith("0.25")
    assert lines["new", "prompt_lookup"]["acceptance rate"] == "-"
    assert lines["new", "prompt_lookup"]["tokens drafted"].startswith("0.00")
    assert {row["prompts"] for row in lines.values()} == {"2"}
    assert overall.shown["draft share"].tolist() == ["25.0%", "25.0%"]
    text = markdown.render(report)
    assert "highest acceptance lengths are those of model in copy (4.00" in text
    assert "nan" not in text.lower()
    assert "synthetic" not in text


def test_times_of_several_prompts_are_not_taken_apart(tmp_path):
    _, parts = drafters.build(folder(tmp_path, CATEGORIES, group=2)).tables
    assert set(parts.shown["speedup"]) == {"-"}


def test_without_categories_there_is_one_table(tmp_path):
    report = drafters.build(folder(tmp_path, dict.fromkeys(CATEGORIES)))
    assert len(report.tables) == 1


def test_synthetic_rows_are_called_so_first(tmp_path):
    report = drafters.build(folder(tmp_path, CATEGORIES, synthetic=True, lossless=False))
    assert "2 of 2 runs are synthetic" in markdown.render(report).partition("## Result")[2][:100]


def test_the_copy_heavy_workload_has_four_categories():
    prompts = load_prompts("embedded:copy_heavy.jsonl")
    counts = {each: sum(prompt.category == each for prompt in prompts) for each in ("repeat", "edit", "rows", "new")}
    assert counts == dict.fromkeys(counts, 6)
    assert len({prompt.text for prompt in prompts}) == len(prompts) == 24


@pytest.mark.parametrize(("category", "expected"), [('"x"', "x"), ("null", ""), ("3", "3")])
def test_a_line_may_have_a_category(tmp_path, category, expected):
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'{{"prompt": "a", "category": {category}}}\n')
    assert dataclasses.asdict(load_prompts(str(path))[0])["category"] == expected
