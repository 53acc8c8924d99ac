"""What a certificate covers, and what it does not."""

from __future__ import annotations

from specbench.exactness.evidence import SUCCESSIVE, TWINS, Evidence
from specbench.exactness.fixtures import Fixture

ALWAYS_BEYOND = (
    "sampling parameters, vocabularies and draft lengths together in other ways than those listed",
    "penalties, grammars and whatever else makes p depend on more than logits and these parameters; trees of drafts",
    "another device, another release of PyTorch or of a driver",
    "code that recognises that it is tested",
    "where logits come from: models, caches, and the engine around the verifier",
)


def covered(evidence: Evidence) -> list[str]:
    """What was verified, in short lines."""
    small = [tally.fixture for tally in evidence.tallies.values()]
    run = [regime for regime in evidence.regimes if regime.refused is None and regime.requests]
    if not small and not run:
        return ["nothing"]
    gammas = [*(fixture.gamma for fixture in small), *(regime.gamma for regime in run)]
    ends = [*(fixture.logit_range for fixture in small), *((each.least_logit, each.largest_logit) for each in run)]
    sizes = sorted({*(fixture.vocabulary for fixture in small), *(regime.vocabulary for regime in run)})
    dtypes = sorted({*(fixture.dtype for fixture in small), *(regime.dtype for regime in run)})
    drafts = {"one-hot" if fixture.deterministic else "sampled" for fixture in small}
    drafts |= {"one-hot" if regime.drafts == "one-hot" else "sampled" for regime in run}
    lines = [
        f"drafts of 0 to {max(gammas)} tokens ({', '.join(str(each) for each in sorted(set(gammas)))} at most)",
        f"vocabularies of {', '.join(f'{size:,}' for size in sizes)} tokens",
        f"logits of {', '.join(dtypes)}, divided by their temperatures {min(low for low, _ in ends):.0f} to "
        f"{max(high for _, high in ends):.0f}; drafts {' and '.join(sorted(drafts))}",
        f"sampling: {', '.join(_parameters(small, [regime.sampling for regime in run]))}",
        "seeds of all 63 bits and positions of all 32, both ends of the ranges among them",
    ]
    batches = [f"{size:,}" for size in sorted({regime.batch for regime in run})]
    largest = f"up to {evidence.batch:,} requests on small vocabularies" if small else ""
    lines.append("batches of " + "; ".join(each for each in (largest, ", ".join(batches)) if each))
    return lines


def not_covered(evidence: Evidence) -> list[str]:
    """What was not."""
    lines = [f"{name}: refused ({reason})" for name, reason in evidence.unsupported.items()]
    lines += [f"{each.regime}: refused ({each.refused})" for each in evidence.regimes if each.refused is not None]
    if not evidence.regimes:
        lines.append("large vocabularies, long drafts and large batches: not run")
    else:
        lines.append(f"vocabularies of more than {max(each.vocabulary for each in evidence.regimes):,} tokens")
    tests = {row.test for row in evidence.rows}
    if SUCCESSIVE not in tests:
        lines.append("successive steps of a request, and neighbours in a batch: not run")
    if TWINS not in tests:
        lines.append("requests whose seeds or positions differ in one bit: not run")
    return [*lines, *ALWAYS_BEYOND]


def _parameters(small: list[Fixture], of_regimes: list[str]) -> list[str]:
    """The kinds of sampling, each once."""
    kinds: dict[str, None] = {}
    for fixture in small:
        for params in fixture.params:
            kinds["greedy" if params.temperature == 0 else "temperature"] = None
            if params.top_p < 1:
                kinds["top-p"] = None
    for text in of_regimes:
        for kind in ("greedy", "temperature", "top-k", "top-p", "min-p"):
            if kind in text:
                kinds[kind] = None
        if "kinds:" in text:
            kinds["parameters that differ within a batch"] = None
    return list(kinds)
