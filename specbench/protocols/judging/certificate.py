"""The certificate of an engine: the verdict first, then what it rests on, its scope, and how to repeat it."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from specbench.core.sampling_params import SamplingParams
from specbench.metrics.findings import OF_CHECKPOINT, SHARES
from specbench.protocols.judging.checks import CHECKS
from specbench.protocols.judging.distribution import BIAS, POWER
from specbench.protocols.judging.finding import CANNOT_TELL, NOT_REFUTED, REFUTED, Finding
from specbench.protocols.judging.greedy import FORKS
from specbench.protocols.judging.speed import SPEED
from specbench.reports import Block, Picture, Report, Section, Table, html, markdown

JSON, MARKDOWN, HTML, FIGURE = "certificate.json", "certificate.md", "certificate.html", "judge_bias"
NOT_TESTED = (
    "other prompts, models, sampling parameters, lengths of texts, draft lengths and loads than those named here",
    "biases that keep the shares of the tokens that texts of this number can tell apart",
    "how several texts of one request (n) are distributed, finish reasons, chat templates, streaming, tool calls and "
    "structures",
    "stop strings, and the characters of texts that have token ids, at temperatures above 0",
    "another release of the engine, another device, another driver",
)
UNSCORED = "whether the plain texts follow the model: both ways of decoding could be wrong alike"
_NOTES = {
    BIAS: """\
classified: tokens before which enough earlier texts agree. entropy: nats a token. observed: total variation between the
ways' shares of three classes of tokens (the likeliest, another of at least 0.1, rarer), noise included. bound: on it,
for each row alone; dashes of too few tokens.""",
    POWER: """\
bias: total variation a token that would have been found, simulated on these texts; a dash if not even 0.5.""",
    SHARES: """\
share: of tokens in the set, in a mode's texts. expected: by the checkpoint. bound: on the size of the difference, for
all sets of a mode together.""",
    FORKS: """\
tokens: followed, up to the fork. least_margin: nats by which the plain token leads every other, at least;
by the checkpoint, over the other token and less what plain texts are behind its argmax, if the cause says so.""",
    CHECKS: """\
cases: texts. way: in which these texts fail. Limits, stop strings and numbers of texts refute the engine if plain texts
never fail in the same way, or significantly less often (Fisher's exact test, one-sided, at 1e-4).""",
    SPEED: """\
95% intervals; signs as in specbench/metrics/definitions.py. Of the timed texts, after one round of warming up.""",
}
_HEADINGS = {
    BIAS: "Bias a token",
    POWER: "What would have been found",
    SHARES: "Shares of tokens, beside the checkpoint's",
    FORKS: "Forks at temperature 0",
    CHECKS: "Checks",
    SPEED: "Acceptance and speed",
}


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """All that one run says of an engine.

    Attributes:
        method: how it speculates; None if that is unknown.
        texts: sampled, those of all questions.
        empty: of them, how many were empty without the model's having ended them.
        scope: what was sampled, in short lines.
    """

    engine: str
    method: str | None
    sampling: SamplingParams
    texts: int
    empty: int
    findings: Sequence[Finding]
    scope: Sequence[str]
    command: str
    environment: Mapping[str, Any]

    @property
    def verdict(self) -> str:
        """REFUTED if a question is; else CANNOT_TELL if one cannot be told, or none that can refute was answered."""
        verdicts = [finding.verdict for finding in self.findings]
        return next((verdict for verdict in (REFUTED, CANNOT_TELL, NOT_REFUTED) if verdict in verdicts), CANNOT_TELL)

    @property
    def headline(self) -> str:
        """The verdict in a line."""
        reasons = [finding.answer for finding in self.findings if finding.verdict == self.verdict]
        remarks = [finding.remark for finding in self.findings if finding.remark]
        return f"{self.verdict}: {' '.join([*(reasons or [self.findings[0].answer]), *remarks])}"

    @property
    def sentence(self) -> str:
        """The verdict in a line that names the engine."""
        return f"{self.engine}{': ' if self.verdict == CANNOT_TELL else ' is '}{self.headline}"

    @property
    def failure(self) -> str | None:
        """Why the command should not exit with 0."""
        return self.sentence if self.verdict == REFUTED else None

    @property
    def not_tested(self) -> list[str]:
        """What no finding is about. With a checkpoint plain texts are scored too."""
        scored = any(finding.question == OF_CHECKPOINT for finding in self.findings)
        return [*NOT_TESTED, *([] if scored else [UNSCORED])]

    def json(self) -> str:
        findings = [
            {**asdict(finding), "rows": {name: list(map(asdict, rows)) for name, rows in finding.rows.items()}}
            for finding in self.findings
        ]
        names = ("verdict", "headline", "engine", "method", "texts", "empty", "command")
        summary = {name: getattr(self, name) for name in names}
        content = {
            **summary,
            "findings": findings,
            "sampling": {**self.sampling.numbers, **self.sampling.beside_numbers},
            "scope": list(self.scope),
            "not_tested": self.not_tested,
            "environment": dict(self.environment),
        }
        return json.dumps(content, indent=1, default=str)

    def report(self, figure: Figure | None) -> Report:
        answers: list[Block] = []
        for finding in self.findings:
            verdict = markdown.strong(f"{finding.question} {finding.verdict.capitalize()}.")
            answers.append(markdown.line(f"{verdict} {markdown.escape(f'{finding.answer} {finding.remark}'.rstrip())}"))
            answers += [markdown.line(markdown.escape(finding.power))] if finding.power else []
        sections = [Section("Answers", tuple(answers)), *self._evidence(figure)]
        environment = markdown.bullets(f"{key}: {value}" for key, value in self.environment.items())
        sections += [
            Section("Scope", (markdown.bullets(self.scope),)),
            Section("Not tested", (markdown.bullets(self.not_tested),)),
            Section("How to repeat it", (markdown.lines([self.command]), environment)),
        ]
        question = "Does the engine write the same texts with speculation as without?"
        verdict = f"Verdict: {self.verdict}"
        return Report("judge", f"{self.engine}: {self.verdict}", question, tuple(sections), verdict, alone=True)

    def pages(self, figure: Figure | None) -> dict[str, str]:
        """The documents of the job, by name."""
        report = self.report(figure)
        linked = [
            Section(
                part.heading,
                tuple(f"[{b.question}]({b.name}.png)" if isinstance(b, Picture) else b for b in part.blocks),
            )
            for part in report.sections
        ]
        return {
            JSON: self.json() + "\n",
            MARKDOWN: markdown.render(dataclasses.replace(report, sections=tuple(linked))),
            HTML: html.render(report),
        }

    def _evidence(self, figure: Figure | None) -> list[Section]:
        sections = []
        for finding in self.findings:
            for name, every in finding.rows.items():
                rows = [row for row in every if name != FORKS or row.position is not None]
                if not rows:
                    continue
                blocks: list[Block] = [_table(name, rows)]
                if name == BIAS and figure is not None:
                    reading = (
                        "Light bars bound the difference, dots are what was observed, for each position and prompt."
                    )
                    blocks.append(Picture(FIGURE, figure, "Where could a bias be?", reading))
                sections.append(Section(_HEADINGS[name], tuple(blocks)))
        return sections


def _table(name: str, rows: Sequence[Any]) -> Table:
    shown = pd.DataFrame([{key: _cell(value) for key, value in asdict(row).items()} for row in rows])
    words = tuple(column for column in shown if any(isinstance(getattr(row, column), str) for row in rows))
    return Table(name.removesuffix(".parquet"), shown, note=markdown.line(_NOTES[name]), left=words)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
