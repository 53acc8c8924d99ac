"""Samples texts from an engine, and writes each to texts.jsonl at once, from where a resumed job takes it again."""

import json
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from specbench.core.errors import ConfigError, OutageError
from specbench.core.machine.disk import writing
from specbench.core.machine.provenance import request_seed
from specbench.core.sampling_params import SamplingParams
from specbench.sources import Mode, Source, TextCompletion, TextRequest
from specbench.sources.contract import SAMPLED, SourceOfSeveral
from specbench.sources.file import completion_of, line_of, read_lines

PROMPTS = Path(__file__).with_name("prompts.jsonl")


@dataclass(frozen=True)
class JudgedPrompt:
    """A prompt, as text, and as the target's token ids where these are known."""

    name: str
    text: str
    token_ids: tuple[int, ...] | None = None


def prompts_of(
    source: Source, count: int, lists: bool, encode: Callable[[str], tuple[int, ...]] | None = None
) -> list[JudgedPrompt]:
    """Prompts that the source has of its own, as a file of texts does, or else ``count`` of those that are shipped.

    Args:
        lists: every second prompt is a list of a few words in random order, which goes on with one to two nats a token:
            many texts begin likewise, so that two samples can be compared. Drafts are rejected more often in sentences.
        encode: gives the target's token ids of a text, if they are known.
    """
    texts = getattr(source, "prompts", None)
    if texts is None:
        lines = [json.loads(line) for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
        words, sentences = ([line for line in lines if ("list" in line) is kind] for kind in (True, False))
        mixed = [line for pair in zip_longest(words, sentences) for line in pair if line is not None]
        texts = {line["id"]: line["prompt"] for line in (mixed if lists else sentences)[:count]}
    return [JudgedPrompt(name, text, None if encode is None else encode(text)) for name, text in texts.items()]


class Sampler:
    """Asks a source for texts.

    Args:
        sampling: of texts whose question does not say otherwise.
        seed: of the run, from which each text's seed is made.
        folder: where SAMPLED is written; None keeps nothing.

    Attributes:
        texts: sampled so far, those of an earlier attempt included.
        empty: of them, how many are empty although nothing says that the model ended them.
    """

    def __init__(self, source: Source, sampling: SamplingParams, seed: int, folder: Path | None):
        self.source, self.sampling, self.seed = source, sampling, seed
        self.texts = self.empty = 0
        self.path = None if folder is None else folder / SAMPLED
        self.earlier: dict[str, deque[dict[str, Any]]] = defaultdict(deque)
        if self.path is not None and self.path.exists():
            # A file gives its texts from the first on again.
            lines = [] if getattr(source, "recorded", False) else read_lines(self.path, partial=True)
            _check_engine(self.path, lines, source.engine)
            with writing(self.path), self.path.open("w", encoding="utf-8") as file:  # without a line that was cut off
                file.writelines(json.dumps(line) + "\n" for line in lines)
            for line in lines:
                self.earlier[_key(line)].append(line)

    def supports(self, name: str) -> bool:
        """Whether the source can set a sampling parameter."""
        return name not in self.source.unsupported

    def encode(self, text: str) -> tuple[int, ...] | None:
        """The engine's own token ids of a prompt; None if it does not tell them, or takes none."""
        encode = getattr(self.source, "encode", None)
        return None if encode is None else encode(text)

    def request(
        self,
        prompt: JudgedPrompt,
        number: int | str,
        length: int,
        mode: Mode | str = "",
        sampling: SamplingParams | None = None,
    ) -> TextRequest:
        """The request for a text of a prompt.

        Args:
            number: of the text; the same number, prompt and mode have the same seed, which is below 2^31 since some
                engines take no other.
            mode: whose seeds these are; empty for seeds that both modes share.
        """
        seed = request_seed(self.seed, f"judge/{mode}/{prompt.name}/{number}") >> 32
        return TextRequest(
            prompt_id=prompt.name,
            prompt=prompt.text,
            sampling=sampling or self.sampling,
            seed=seed,
            max_new_tokens=length,
            token_ids=prompt.token_ids,
        )

    def complete(self, requests: Sequence[TextRequest], mode: Mode, question: str) -> list[TextCompletion]:
        """One completion a request. Texts that an earlier attempt sampled are not sampled again.

        Raises:
            SpecbenchError: the source's, and that a text cannot be written.
        """
        texts: dict[int, TextCompletion] = {}
        for place, request in enumerate(requests):
            waiting = self.earlier.get(_key_of(request, mode, question))
            if waiting:
                texts[place] = completion_of(request, waiting.popleft())
        missing = [place for place in range(len(requests)) if place not in texts]
        completions = self.source.complete([requests[place] for place in missing], mode) if missing else []
        self._check_kind(completions, "complete")
        if len(completions) != len(missing):
            raise self._broken(f"complete returned {len(completions)} completions for {len(missing)} requests")
        for place, completion in zip(missing, completions, strict=True):
            prompt_id = requests[place].prompt_id
            if completion.request.prompt_id != prompt_id or completion.mode is not mode:
                raise self._broken(f"complete returned another text in place of the {mode} one of prompt {prompt_id!r}")
        self._write(completions, question)
        texts |= dict(zip(missing, completions, strict=True))
        self.texts += len(texts)
        self.empty += sum(
            not completion.text and not completion.token_ids and completion.finish_reason != "stop"
            for completion in texts.values()
        )
        return [texts[place] for place in range(len(requests))]

    def several(self, request: TextRequest, count: int, mode: Mode, question: str) -> list[TextCompletion]:
        """Texts that a SourceOfSeveral samples together for one request; those of an earlier attempt, if it had all.

        Raises:
            SpecbenchError: see :meth:`complete`.
        """
        assert isinstance(self.source, SourceOfSeveral)
        waiting = self.earlier.pop(_key_of(request, mode, question), ())
        if len(waiting) == count:
            texts = [completion_of(request, line) for line in waiting]
        else:
            texts = self.source.choices(request, count, mode)
            self._check_kind(texts, "choices")
            self._write(texts, question)
        self.texts += len(texts)
        return texts

    def _check_kind(self, completions: object, method: str) -> None:
        """Raises OutageError for anything but a list of completions."""
        if not isinstance(completions, list | tuple):
            raise self._broken(f"{method} returned a {type(completions).__name__}")
        kind = next((type(one).__name__ for one in completions if not isinstance(one, TextCompletion)), None)
        if kind is not None:
            raise self._broken(f"{method} returned a list with a {kind}")

    def _broken(self, problem: str) -> OutageError:
        """The error of a source that breaks its contract, which is no refusal of one request: the job fails."""
        remedy = "Return a list of TextCompletion, one for each request in their order (docs/sources.md)."
        return OutageError("source", type(self.source).__name__, problem, remedy)

    def _write(self, completions: Sequence[TextCompletion], question: str) -> None:
        if self.path is not None and completions:
            with writing(self.path), self.path.open("a", encoding="utf-8") as file:
                file.writelines(line_of(completion, question, self.source.engine) for completion in completions)


def _check_engine(path: Path, lines: Sequence[dict[str, Any]], engine: str) -> None:
    """Raises ConfigError if another engine, or another release of it, sampled one of an earlier attempt's texts."""
    others = {line["engine"] for line in lines if line.get("engine", engine) != engine}
    if others:
        problem = f"{path} has texts of {', '.join(sorted(others))}, and one certificate is of one engine"
        raise ConfigError("source", engine, problem, "Start that engine to resume, or judge this one in a new run.")


def _key(line: dict[str, Any]) -> str:
    sampled = json.dumps(line.get("sampling", {}), sort_keys=True)
    values = [line.get(name) for name in ("question", "prompt_id", "prompt", "mode", "seed", "max_new_tokens")]
    return json.dumps([*values, sampled])


def _key_of(request: TextRequest, mode: Mode, question: str) -> str:
    empty = TextCompletion(request=request, mode=mode, text="")
    return _key(json.loads(line_of(empty, question, "")))
