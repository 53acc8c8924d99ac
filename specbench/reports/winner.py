"""What a table or a report says of the fastest setting, and of a machine on which that cannot be told."""

from collections.abc import Sequence

import pandas as pd
from markupsafe import Markup

from specbench.metrics.columns import typed_row
from specbench.metrics.disturbance import OTHERS, WAITED, Disturbance, is_disturbed
from specbench.metrics.ranking import plain_changed, ranking, seen
from specbench.metrics.run_row import RunRow
from specbench.reports.cells import Run
from specbench.reports.templates import words


def fastest(rows: pd.DataFrame, names: Sequence[str]) -> Markup:
    """Names the fastest setting if the data show that it is, and else says why it is not named."""
    outcome, looks = ranking(rows), rows.get(Run.looks, pd.Series()).dropna()
    rivals = [names[place] for place in outcome.rivals]
    most_looks = int(looks.max()) if len(names) > 1 and len(looks) else 0
    best, name, others = typed_row(rows.iloc[outcome.best], RunRow), names[outcome.best], len(names) - 1
    return words("ranking.fastest", best, name, rivals, outcome, others, most_looks, _plain_by_engine(rows))


def _plain_by_engine(rows: pd.DataFrame) -> dict[str, float]:
    """Median tokens a second of plain decoding through each engine; empty where all settings ran through one."""
    if Run.engine not in rows or rows[Run.engine].nunique() < 2:
        return {}
    return dict(rows.groupby(Run.engine)[Run.plain_tokens_per_second].median())


def machine(rows: pd.DataFrame) -> Markup:
    """What is wrong with the machine on which rows were timed; empty where nothing is known to be."""
    speeds = rows[Run.plain_tokens_per_second] if plain_changed(rows) else None
    return words("ranking.machine", disturbed(seen(rows)), speeds)


def disturbed(every: Sequence[Disturbance]) -> str:
    """What other processes took while runs were timed, if it was much: half a sentence, empty where it was not."""
    hit = [row for row in every if is_disturbed(row)]
    if not hit:
        return ""
    cores, others, waited = (max(getattr(row, name) or 0 for row in hit) for name in ("cores", "other_cores", "waited"))
    most, clauses = "up to " if len(hit) > 1 else "", []
    if cores and others > OTHERS * cores:
        clauses.append(f"other processes used {most}{others:.1f} of {cores} cores")
    if waited > WAITED:
        clauses.append(f"what was timed waited for a core {most}{waited:.0%} of the time")
    return " and ".join(clauses) + (f", in {len(hit)} of {len(every)} runs" if len(every) > 1 else "")
