"""What a trace's columns and its sampler may hold. Every refusal names the file, the line and the value."""

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import pyarrow as pa

from specbench.core.checks import is_number, nearest
from specbench.core.errors import ConfigError
from specbench.core.machine.files import LONGEST_NAME, Origin, clipped, is_name, reason, shown
from specbench.core.sampling_params import RECORDED, SamplingParams

KEY = "protocol.trace"
SAMPLER = RECORDED
_CHECKS = {field.name: field.metadata["check"] for field in dataclasses.fields(SamplingParams)}
_LOG = "Log-probabilities are at most 0, and a token that was sampled had a probability: log_p is finite."
_GREEDY = (
    "Engines report log-probabilities of temperature 1. Write 0 for log_p; for log_q write 0 where the draft's most "
    "likely token is the text's, and -Infinity elsewhere."
)
_FLAG = "Write 1 for yes and 0 for no."
_ENTROPY = "Entropies are in nats, from 0."
NAME = f"Prompts have names of 1 to {LONGEST_NAME} printable characters, or whole numbers."
_KINDS_OF_NAMES = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_integer)
_LARGEST = float(np.finfo(np.float32).max)
# name: lowest, highest, and what to do about others
_RANGES = {
    "token": (0, math.inf, "Token ids count from 0."),
    "log_p": (-_LARGEST, 0.0, _LOG),
    "log_q": (-math.inf, 0.0, _LOG),
    "overlap": (-1e-5, 1 + 1e-5, "It is the sum of min(p, q) over the vocabulary, from 0 to 1."),
    "target_entropy": (-1e-5, _LARGEST, _ENTROPY),
    "draft_entropy": (-1e-5, _LARGEST, _ENTROPY),
    "draft_confidence": (0.0, 1.0, "It is a probability, from 0 to 1."),
    "argmax_agree": (0.0, 1.0, _FLAG),
    "draft_argmax": (0.0, 1.0, _FLAG),
}
Where = Callable[[int], str]  # names the place of a row in its file


def sampler_of(given: Mapping[str, object]) -> dict[str, float]:
    """The numbers of a sampler, top_k -1 (off) as 0.

    Raises:
        ValueError: other names than those of SAMPLER, or a value that SamplingParams refuses.
    """
    if set(given) != set(SAMPLER):
        raise ValueError(f"sampler of {clipped(', '.join(sorted(given)) or 'nothing')}, not of {', '.join(SAMPLER)}")
    for name, value in given.items():
        if not is_number(value):
            raise ValueError(f"{name} {shown(value)} is not a number")
    try:
        return {name: float(_CHECKS[name](name, given[name])) for name in SAMPLER}
    except ConfigError as error:
        raise ValueError(str(error)) from error


def check_keys(
    written: Collection[str], known: Sequence[str], source: Origin, place: str, elsewhere: Sequence[str] = ()
) -> None:
    """Raises ConfigError for an unknown key that resembles a missing one, because its value would be ignored.

    Args:
        written: the keys in this place of the file.
        known: the keys that are read in this place.
        elsewhere: keys of another place that users write here by mistake.
    """
    candidates = (*(name for name in known if name not in written), *elsewhere)
    for name in written:
        # Other keys may stay, such as the text itself. A ratio of 0.8 refuses max_tokens and accepts num_tokens.
        if name not in known and (near := nearest(name, candidates, 0.8)):
            guess = "" if near == name else f"Did you mean {near}? "
            raise source.wrong(f"{place} has {shown(name)}, which is not read there", f"{guess}{source.remedy}")


def numbers(table: pa.Table, name: str, kind: pa.DataType, source: Origin, *, null: int | None = None) -> np.ndarray:
    """A column in a number format; ``null`` takes the place of nulls.

    Raises:
        ConfigError: values that do not fit it, such as text, fractions among whole numbers, or 2^63 and above.
    """
    try:
        column = table[name].cast(kind)
        return (column if null is None else column.fill_null(null)).to_numpy()
    except pa.ArrowException as error:
        problem = f"{name} holds other values than {kind} ({reason(error)})"
        raise source.wrong(problem, "See specbench/replay/trace.py for the format.") from error


def names(column: pa.ChunkedArray, source: Origin, where: Where) -> np.ndarray:
    """The names of a column of texts or whole numbers, without nulls.

    Raises:
        ConfigError: another kind of values, text that is not UTF-8, or what is no name.
    """
    try:
        if pa.types.is_dictionary(column.type):  # as pandas writes categories
            column = column.cast(column.type.value_type)
        if not any(is_kind(column.type) for is_kind in _KINDS_OF_NAMES):
            raise source.wrong(f"prompt holds {column.type}, not texts", NAME)
        texts = [str(name) for name in column.to_pylist()]
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise source.wrong(f"prompt holds no texts ({reason(error)})", NAME) from error
    good = {name for name in set(texts) if is_name(name)}
    for row, name in enumerate(texts):
        if name not in good:
            raise source.wrong(f"prompt {shown(name)} in {where(row)} cannot be a name", NAME)
    return np.asarray(texts, dtype=object)


def check_values(columns: Mapping[str, np.ndarray], source: Origin, where: Where) -> None:
    """Raises ConfigError for the first value that its column cannot have."""
    for name, values in columns.items():
        low, high, remedy = _RANGES[name]
        wrong = np.isnan(values) | (values > high) | (values < low)
        if remedy == _FLAG:
            wrong |= (values != 0) & (values != 1)
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            others = int(wrong.sum()) - 1
            more = f", and {others:,} other values are impossible too" if others else ""
            raise source.wrong(f"{name} is {values[row]:.6g} in {where(row)}{more}", remedy)


def check_greedy(log_p: np.ndarray, source: Origin, where: Where) -> None:
    """Raises ConfigError for a log_p other than 0, where the sampler has temperature 0."""
    if len(wrong := np.flatnonzero(log_p < -1e-5)):
        problem = f"log_p is {log_p[wrong[0]]:.6g} in {where(int(wrong[0]))}, but at temperature 0 p is one token"
        raise source.wrong(f"{problem}, so that log_p is 0", _GREEDY)
