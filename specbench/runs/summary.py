"""The table at the end of a run."""

from pathlib import Path

import pandas as pd
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from specbench.core.machine.progress import console, say
from specbench.metrics.results import OF_WORKLOAD
from specbench.metrics.run_settings import SAMPLER, distinguishing_columns, with_settings
from specbench.reports import cells
from specbench.reports.between import tokens_a_step
from specbench.reports.markdown import literal
from specbench.reports.winner import fastest, machine

_BORDERS = 3  # characters of a table beside each column
_LONGEST = 40  # characters of a parameter in a table's cell


def print_table(frame: pd.DataFrame, title: str) -> None:
    """Prints a table of texts; if its words do not fit beside each other, a line a cell, so that no number is cut.

    Texts are shown as they are: in plain strings rich takes [red] for a colour.
    """
    columns = [[str(name), *frame[name]] for name in frame]
    widths = [max(cell_len(word) for text in texts for word in text.split() or [""]) for texts in columns]
    spare = console.width - 1 - sum(width + _BORDERS for width in widths)
    if spare < 0:
        table = Table(title=Text(title), show_header=False)
        table.add_column(overflow="fold")
        table.add_column(overflow="fold", justify="right")
        for row in frame.itertuples(index=False):
            for line in zip(frame, row, strict=True):
                table.add_row(*map(Text, line))
            table.add_section()
    else:
        table = Table(title=Text(title))
        for texts, width in zip(columns, widths, strict=True):
            more = min(spare, max(map(cell_len, texts)) - width)
            spare -= more
            table.add_column(Text(texts[0]), justify="right", width=width + more)
        for row in frame.itertuples(index=False):
            table.add_row(*map(Text, row))
    console.print(table)


def print_categories(rows: pd.DataFrame, categories: pd.DataFrame) -> None:
    """One line a run and category of its workload (results.CATEGORIES): how much was accepted, and what it gained.

    Args:
        categories: of all of them; nothing is printed if there are none.
    """
    if categories.empty:
        return
    rows = with_settings(rows)
    settings = rows[["job", *_table_columns(rows)]].rename(columns=OF_WORKLOAD)
    lines = categories.replace({"category": {"": "(none)"}}).merge(settings, on="job")
    measured = ("category", "prompts", "texts", "acceptance length", "acceptance rate", "speedup")
    table = cells.table(lines, [*settings.columns.drop("job"), *measured])
    print_table(table, "by category")
    if few := cells.few_units("prompts of a category", int(categories["prompts"].min())):
        say(few)
    if categories["speedup"].isna().any():
        say(
            "No speedup where a batch held several categories: batch_size=1 or protocol.group=category keep them apart."
        )
    if (categories["speedup"].notna() & categories["speedup_low"].isna()).any():
        say(
            "A speedup without an interval is of one batch: a smaller batch_size or protocol.group or more prompts "
            "give it one."
        )


def print_summary(rows: pd.DataFrame, folder: Path | None = None) -> None:
    """One line a run: what varied, how much was accepted, how fast it was, how close to the target.

    Below the table stand which setting is the fastest, if that can be told, which verifiers yield more tokens a step,
    and what disturbed the machine.

    Args:
        folder: the sweep's, whose step logs compare verifiers; None compares none.
    """
    # None among numbers makes them floats.
    chunks = ["whole" if pd.isna(chunk) else str(chunk).removesuffix(".0") for chunk in rows["prompt_chunk"]]
    rows = with_settings(rows)
    labelled, shown = rows.assign(prompt_chunk=chunks), _table_columns(rows) or ["gamma", "verifier"]
    shared = [rows[name].iloc[0] for name in ("pair", "hardware") if rows[name].nunique() == 1]
    measured = ("tokens a step", "acceptance rate", "tokens/s", "plain tokens/s", "speedup", "TV (noise)")
    table = cells.table(labelled, [*shown, *cells.varying_prompts(rows), *measured])
    print_table(table, ": ".join(filter(None, [rows["exp"].iloc[0], ", ".join(shared)])))
    names = [", ".join(f"{name} {cells.plain(row[name])}" for name in shown) for _, row in labelled.iterrows()]
    settings = distinguishing_columns(rows, "verifier") or ["gamma"]
    verdicts = [] if folder is None else tokens_a_step(folder, rows, settings)
    for text in (*([fastest(rows, names)] if len(rows) > 1 else []), *verdicts, machine(rows)):
        if text:
            say(literal(text))


def _table_columns(rows: pd.DataFrame) -> list[str]:
    """The columns that tell rows of with_settings apart; the sampler's name is short, so it is told as well, and in the
    place of parameters that follow from it and would fill the screen, such as a schema. Reports have these."""
    names = distinguishing_columns(rows)
    if rows["sampler"].nunique() < 2:
        return names
    of_samplers = rows.groupby("sampler", dropna=False)
    spared = {
        name
        for name in names
        if name.startswith((SAMPLER, "token_rules"))
        and max(len(cells.plain(value)) for value in rows[name]) > _LONGEST
        and of_samplers[name].nunique(dropna=False).max() == 1
    }
    return ["sampler", *(name for name in names if name not in spared)]
