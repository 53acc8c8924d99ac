"""What a certificate covers, and what it does not."""

from __future__ import annotations

from specbench.exactness.evidence import SUCCESSIVE, TWINS, Evidence
from specbench.exactness.trials.run import ALL

ALWAYS_BEYOND = (
    "inputs to which D gives no weight, such as larger vocabularies and batches, other temperatures and truncations",
    "penalties, grammars and whatever else makes p depend on more than logits and these parameters; trees of drafts",
    "another device, another release of PyTorch or of a driver",
    "code that recognises that it is tested, and what more calls of one object would change",
    "where logits come from: models, caches, and the engine around the verifier",
)


def covered(evidence: Evidence) -> list[str]:
    """What was verified, in short lines."""
    lines = []
    small = [tally.fixture for tally in evidence.tallies.values()]
    if small:
        sizes = ", ".join(str(size) for size in sorted({fixture.vocabulary for fixture in small}))
        gammas = [count for fixture in small for count in fixture.counts]
        lines.append(
            f"{len(small)} small pairs of known distributions: {sizes} tokens, drafts of {min(gammas)} to "
            f"{max(gammas)} tokens, batches of up to {evidence.batch:,} requests, seeds and positions of all bits"
        )
    whole = next((row for row in evidence.inputs if row.stratum == ALL), None)
    if whole is not None and whole.calls:
        lines.append(
            f"{whole.calls:,} calls drawn from the input distribution D: {whole.requests:,} requests, {whole.rows:,} "
            "rows of the target, each drawn anew; the tables below have every choice with its probability"
        )
    return lines or ["nothing"]


def not_covered(evidence: Evidence) -> list[str]:
    """What was not."""
    lines = [f"{name}: refused ({reason})" for name, reason in evidence.unsupported.items()]
    lines += [f"{count:,} calls of D: refused ({reason})" for reason, count in evidence.refusals.items()]
    if not evidence.inputs:
        lines.append("calls drawn from D, and with them large vocabularies, long drafts and mixed batches: not run")
    lines += [f"{name}, so D was drawn without" for name in evidence.left_out]
    if evidence.inputs and evidence.row is None and evidence.interrupted is None:
        lines.append(
            "the law of a step on one pair of rows of a larger vocabulary: it has no uniforms or no formulas to go by"
        )
    if any(bound.by_counts for bound in evidence.bounds):
        lines.append(
            "where counts alone speak, faults that strike few calls as a whole, since requests are counted one by one"
        )
    tests = {row.test for row in evidence.rows}
    if SUCCESSIVE not in tests:
        lines.append("successive steps of a request, and neighbours in a batch: not run")
    if TWINS not in tests:
        lines.append("requests whose seeds or positions differ in one bit: not run")
    return [*lines, *ALWAYS_BEYOND]
