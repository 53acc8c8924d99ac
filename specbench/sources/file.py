"""Texts that were served before, as JSON lines, one text a line; ``texts.jsonl`` of protocol=judge is such a file.

Each line is an object with ``prompt_id``, ``mode`` ("plain" or "speculative") and ``text``, ``token_ids`` or both. It
may have ``prompt``, ``seed``, ``max_new_tokens``, ``temperature``, ``finish_reason``, ``logprobs``, ``counters``,
``seconds``, ``engine``, ``sampling`` (the parameters that are not off, by name), and ``question``: why protocol=judge
sampled the text. Lines are read in their order. Without temperature or sampling the run's are taken for granted.
Log-probabilities are natural logarithms, one for each of ``token_ids``. protocol.target needs ``prompt``.
Of drawn texts with the same prompt_id, mode and seed only the first is read.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specbench.core.checks import check_path, nearest
from specbench.core.errors import ConfigError
from specbench.core.machine.files import Origin, reason, shown
from specbench.core.sampling_params import DEFAULTS, NUMBERS, SHAPING, TRUNCATIONS, SamplingParams
from specbench.exactness.two_sample.pairs import words_of
from specbench.sources.contract import Mode, TextCompletion, TextRequest, logprobs_problem
from specbench.sources.parameters import active_params
from specbench.sources.values import Kind, is_a, is_counters, is_logprobs, is_name, is_number, is_token_ids

DISTRIBUTION, GREEDY = "distribution", "greedy"  # questions whose texts can be judged again
LONGEST = 16 * 2**20  # bytes of a line
_FIELDS: dict[str, Kind] = {  # which a line may have
    **dict.fromkeys(("text", "prompt", "finish_reason"), str),
    **dict.fromkeys(("engine", "question"), is_name),
    **dict.fromkeys(("seed", "max_new_tokens", "temperature", "seconds"), is_number),
    **{"token_ids": is_token_ids, "logprobs": is_logprobs, "counters": is_counters, "sampling": dict},
}
_DISTRIBUTION = (*NUMBERS, *SHAPING, "structured_outputs")  # parameters on which the distribution of a text depends
_IN_LINES = [name for name in DEFAULTS if name != "processors"]  # which JSON cannot hold
_FORMAT = "See specbench/sources/file.py for what a line holds."


def line_of(completion: TextCompletion, question: str, engine: str) -> str:
    """A line for a completion."""
    request, sampling = completion.request, completion.request.sampling
    content = {
        "question": question,
        "prompt_id": request.prompt_id,
        "prompt": request.prompt,
        "mode": str(completion.mode),
        "seed": request.seed,
        "max_new_tokens": request.max_new_tokens,
        "temperature": sampling.temperature,
        "sampling": active_params(sampling, _IN_LINES),
        "text": completion.text,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        "logprobs": completion.logprobs,
        "counters": dict(completion.counters),
        "seconds": completion.seconds,
        "engine": engine,
    }
    return json.dumps({name: value for name, value in content.items() if value is not None}) + "\n"


def _check_sampling(request: TextRequest, line: Mapping[str, Any], path: Path) -> None:
    """Raises ConfigError for a text of another distribution than the request's, as far as its line says.

    At temperature 0 truncations are left out, because they keep the likeliest token.
    """
    stated = {"temperature": 0.0} if request.sampling.greedy else {}
    stated |= {name: value for name, value in line.get("sampling", {}).items() if name in _DISTRIBUTION}
    stated |= {"temperature": line["temperature"]} if "temperature" in line else {}
    names = [name for name in _DISTRIBUTION if not (request.sampling.greedy and name in TRUNCATIONS)]
    wanted = {name: getattr(request.sampling, name) for name in names}
    used = SamplingParams.from_mapping(stated, **({} if "sampling" in line else wanted))
    for name, value in wanted.items():
        if getattr(used, name) != value:
            problem = f"texts of prompt {request.prompt_id!r} in {path} were sampled with {getattr(used, name)!r}"
            raise ConfigError(f"sampler.{name}", value, problem, "Use the parameters that they were sampled with.")


def completion_of(request: TextRequest, line: Mapping[str, Any]) -> TextCompletion:
    """The completion of a line, as the answer to a request."""
    return TextCompletion(
        request=request,
        mode=Mode(line["mode"]),
        text=line.get("text", ""),
        token_ids=tuple(line["token_ids"]) if "token_ids" in line else None,
        finish_reason=line.get("finish_reason"),
        logprobs=tuple(line["logprobs"]) if "logprobs" in line else None,
        counters=line.get("counters", {}),
        seconds=line.get("seconds"),
    )


def _longest(groups: Iterable[Sequence[Mapping[str, Any]]]) -> int:
    """Tokens of the longest text, or words where it has no token ids."""
    lines = [line for group in groups for line in group]
    return max((len(line.get("token_ids") or words_of(line.get("text", ""))) for line in lines), default=0) or 1


def _limit(line: Mapping[str, Any]) -> int:
    """The tokens that a line allows its text; all that it has if it states no limit."""
    limit, count = line.get("max_new_tokens", 0), len(line.get("token_ids", ()))
    return int(limit) if limit > 0 else count


def _cut(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line without the tokens behind its limit: a text's length would count in the comparison of distributions."""
    if len(line.get("token_ids", ())) <= _limit(line):
        return dict(line)
    tokens = {name: line[name][: _limit(line)] for name in ("token_ids", "logprobs") if name in line}
    return {**line, **tokens, "finish_reason": "length"}


def _overruns(lines: Sequence[Mapping[str, Any]]) -> tuple[int, list[tuple[str, str]]]:
    """How many texts have token ids and a limit, and of each that is longer "too long" and a detail."""
    return sum("token_ids" in line and "max_new_tokens" in line for line in lines), [
        ("too long", f"{len(line['token_ids'])} tokens for max_tokens={_limit(line)}, prompt {line['prompt_id']!r}")
        for line in lines
        if len(line.get("token_ids", ())) > _limit(line)
    ]


def read_lines(path: Path, partial: bool = False) -> list[dict[str, Any]]:
    """The lines of a file, checked, without what is null in them.

    Args:
        partial: a last line that was cut off while it was written is left out.

    Raises:
        ConfigError: names the line and what it lacks.
    """
    try:
        rows = path.read_bytes().split(b"\n")
    except (OSError, ValueError) as error:  # ValueError: a path that no file can have
        raise ConfigError("source.path", path, f"cannot be read ({reason(error)})", "Give a file of texts.") from error
    lines, origin = [], Origin("source.path", path, _FORMAT)
    for number, row in enumerate(rows, 1):
        if not row.strip() or (partial and number == len(rows)):  # a whole line ends in a line break
            continue
        if len(row) > LONGEST:
            raise origin.wrong(f"line {number} has {len(row):,} bytes")
        line = origin.parsed(row, f"line {number}")
        if not isinstance(line, dict) or not {"prompt_id", "mode"} <= set(line):
            raise origin.wrong(f"line {number} is no object with a prompt_id and a mode")
        line = {name: value for name, value in line.items() if value is not None}
        if problem := next(_problems(line), None):
            raise origin.wrong(f"line {number} {problem}")
        lines.append(line)
    return lines


def _problems(line: dict[str, Any]) -> Iterator[str]:
    """What is wrong with the values of a line. A check may need that the checks before it found nothing."""
    if not is_name(prompt_id := line.get("prompt_id")):
        yield f"has the prompt_id {shown(prompt_id)}, which is no text"
    if (mode := line.get("mode")) not in list(Mode):
        yield f"has the mode {shown(mode)}, which is neither plain nor speculative"
    if "text" not in line and "token_ids" not in line:
        yield "has neither text nor token_ids"
    for name, kind in _FIELDS.items():
        if name in line and not is_a(kind, line[name]):
            yield f"has a {name} that cannot be read, {shown(line[name])}"
    missing = tuple(name for name in _FIELDS if name not in line)
    for name in sorted(line.keys() - _FIELDS.keys() - {"prompt_id", "mode"}):  # engines may have keys of their own
        if near := nearest(name, missing, 0.8):
            yield f"has the key {shown(name)}, which is not read. Did you mean {near}? Rename it"
    if unknown := sorted(set(line.get("sampling", {})) - set(DEFAULTS)):
        yield f"has the sampling parameter {shown(unknown[0])}, which is not known here"
    if line.get("question") == GREEDY and line.get("temperature", 0) > 0:
        yield f"has the question 'greedy' and the temperature {line['temperature']}; give 'distribution', or 0"
    if problem := logprobs_problem(line.get("logprobs"), line.get("token_ids")):
        yield f"has {problem}"


class FileSource:
    """Texts of a file. The n-th request for a prompt and a mode gets the n-th such text, whatever its seed.

    Attributes that describe the texts are set by :meth:`open`.

    Args:
        path: of the file.

    Attributes:
        prompts: texts of prompts by their ids; a protocol asks for these in the place of its own.
        without_prompt: ids of the prompts that no line has the text of, which is "" in ``prompts``.
        pairs: how many texts of both modes each prompt has.
        greedy: prompts that have texts at temperature 0 of both modes.
        overruns: by mode, how many texts state a limit, and what is wrong with each that is longer; texts that are
            compared as drawn are cut at their limit.
        same_seed: how many drawn texts are left out because an earlier text of their prompt and mode has their seed.
        longest: tokens of the longest text that is compared as drawn, and of the longest at temperature 0; words of a
            text without token ids; at least 1.

    Raises:
        ConfigError: a file that cannot be read, or has texts of both modes and no pair of them.
    """

    engine = "texts of a file"  # until it has been opened, as modes are
    modes = frozenset(Mode)
    recorded = True
    unsupported: frozenset[str] = frozenset({"logprobs"})
    takes_seeds = False

    def __init__(self, path: object):
        self.path = check_path("source.path", path)

    def open(self) -> None:
        texts: dict[tuple[str, Mode, bool], list[dict[str, Any]]] = defaultdict(list)
        prompts: dict[str, set[str]] = defaultdict(set)
        lines, self.same_seed, drawn = read_lines(self.path), 0, set[tuple[str, str, float]]()
        self.overruns = {mode: _overruns([line for line in lines if line["mode"] == mode]) for mode in Mode}
        for line in lines:
            question = line.get("question", GREEDY if line.get("temperature") == 0 else DISTRIBUTION)
            if question in (DISTRIBUTION, GREEDY):
                prompts[line["prompt_id"]].update([line["prompt"]] if "prompt" in line else [])
                greedy = question == GREEDY
                if not greedy and "seed" in line:
                    draw = (line["prompt_id"], line["mode"], line["seed"])
                    if draw in drawn:
                        self.same_seed += 1
                        continue
                    drawn.add(draw)
                texts[line["prompt_id"], Mode(line["mode"]), greedy].append(line if greedy else _cut(line))
        if not lines:
            raise ConfigError("source.path", self.path, "it has no lines", "Give a file of texts, one a line.")
        if not texts:
            problem = f"no line has the question {DISTRIBUTION!r} or {GREEDY!r}, for which texts are judged"
            raise ConfigError(
                "source.path", self.path, problem, "Leave question out of the lines, or name one of them."
            )
        for name, prompt in prompts.items():
            if len(prompt) > 1:
                problem = f"its texts of prompt {name!r} have different prompts"
                raise ConfigError("source.path", self.path, problem, "Give each prompt a prompt_id of its own.")
        self.prompts = {name: max(prompt, default="") for name, prompt in prompts.items()}
        self.without_prompt = [name for name, prompt in prompts.items() if not prompt]
        self._texts, self._given = dict(texts), defaultdict[tuple[str, Mode, bool], int](int)
        self._limits: dict[tuple[str, bool, int], float] = {}  # tokens of the n-th text of a prompt, greedy or not
        self.modes = frozenset(mode for _, mode, _ in texts)
        self.pairs = {name: min(len(texts.get((name, mode, False), ())) for mode in Mode) for name in self.prompts}
        self.greedy = {name for name in self.prompts if all((name, mode, True) in texts for mode in Mode)}
        overrun = any(problems for _, problems in self.overruns.values())  # which are judged without a pair too
        if self.modes == frozenset(Mode) and not any(self.pairs.values()) and not self.greedy and not overrun:
            remedy = "Give both the same prompt_id, and texts at temperature 0 in both modes or in none."
            raise ConfigError("source.path", self.path, "no prompt_id has texts of both modes", remedy)
        drawn = [texts[name, mode, False][:count] for name, count in self.pairs.items() if count for mode in Mode]
        likeliest = [texts[name, mode, True][:1] for name in self.greedy for mode in Mode]
        self.longest = (_longest(drawn), _longest(likeliest))
        engines = sorted({line["engine"] for line in lines if "engine" in line})
        self.engine = f"texts of {self.path.name}" + (f", served by {', '.join(engines)}" if engines else "")

    def complete(self, requests: Sequence[TextRequest], mode: Mode) -> list[TextCompletion]:
        """The next texts of these prompts.

        Raises:
            ConfigError: a prompt has none left, or its text was sampled with other parameters than the request's, or
                with another limit than the other mode's.
        """
        completions = []
        for request in requests:
            key = (request.prompt_id, mode, request.sampling.greedy)
            texts, number = self._texts.get(key, []), self._given[key]
            if number >= len(texts):
                problem = f"has {len(texts)} {mode} texts of prompt {request.prompt_id!r}"
                raise ConfigError("source.path", self.path, problem, "Ask for fewer, or serve more.")
            _check_sampling(request, texts[number], self.path)
            self._check_limit(request, texts[number], number)
            self._given[key] += 1
            completions.append(completion_of(request, texts[number]))
        return completions

    def _check_limit(self, request: TextRequest, line: Mapping[str, Any], number: int) -> None:
        """Raises ConfigError if the other mode's text that this one is compared with may have more or fewer tokens."""
        limit = min(line.get("max_new_tokens", request.max_new_tokens), request.max_new_tokens)
        first = self._limits.setdefault((request.prompt_id, request.sampling.greedy, number), limit)
        if first != limit:
            key = "protocol.greedy_length" if request.sampling.greedy else "protocol.length"
            problem = f"texts of prompt {request.prompt_id!r} have up to {first} tokens one way, {limit} the other"
            if self.same_seed:
                problem += f", once {self.same_seed:,} texts with the seed of an earlier one are left out"
            remedy = f"Give both the same max_new_tokens, or compare no more tokens: {key}={min(first, limit)}."
            raise ConfigError("source.path", self.path, problem, remedy)

    def close(self) -> None:
        self._texts = {}
