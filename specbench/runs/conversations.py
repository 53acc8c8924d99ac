"""Prompts -> the requests of a job: tokenised, with seeds, and with what each conversation said before.

A turn after the first is asked behind the target's reply to the one before. That reply is decoded here, plainly and
before anything is timed, with the request's own seed. So every turn is a request like any other: plain and speculative
decoding get the very same prompt, each of a length that both have, in every round and for every setting of a sweep, and
any protocol can run it. The reply is distributed as that of any lossless verifier; at temperature 0, and with a
verifier that draws as plain decoding does, it is the very text. A lossy verifier's own replies are not fed back.

Each request holds the whole conversation, and its time the time to feed that, as in Spec-Bench: nothing is cached from
turn to turn.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from specbench.config import Config
from specbench.decoding import Completion, Decoder, Request
from specbench.errors import ConfigError
from specbench.files import shown
from specbench.models import Pair
from specbench.progress import track
from specbench.provenance import request_seed
from specbench.sampling import SamplingParams
from specbench.workloads import Message, Prompt

KEY = "workload.path"


def own_sampling(prompt: Prompt, sampling: SamplingParams, path: str) -> SamplingParams:
    """The run's sampling parameters, with those of the prompt's line in their places.

    Raises:
        ConfigError: one that is unknown or outside its range; names file, line, prompt and parameter.
    """
    if not prompt.sampling:
        return sampling
    where = f"{prompt.place}: prompt {prompt.name!r}"
    for name in prompt.sampling:
        if name not in sampling.numbers:
            problem = f"{where} has {name} {shown(prompt.sampling[name])}, which cannot be run"
            remedy = "Leave it out of the line, or ignore what lines say of sampling: workload.parameters=false."
            raise ConfigError(KEY, path, problem, remedy)
    try:
        return dataclasses.replace(sampling, **prompt.sampling)
    except ConfigError as error:
        raise ConfigError(KEY, path, f"{where}: {error}", "Mend the line.") from error


class Conversations:
    """Makes requests of prompts, turn by turn.

    Args:
        sampling: the run's.
    """

    def __init__(self, pair: Pair, sampling: SamplingParams, config: Config):
        self.pair, self.sampling, self.config = pair, sampling, config

    def requests(self, prompts: Sequence[Prompt], plain: Callable[[], Decoder]) -> list[Request]:
        """The requests of all turns, those of a conversation one after the other.

        Args:
            plain: makes what decodes replies, if there are any turns to come after them.

        Raises:
            ConfigError: a turn that leaves no room for max_new_tokens in either model's context.
        """
        said = [list(prompt.messages) for prompt in prompts]
        turns = [[self.request(prompt, messages)] for prompt, messages in zip(prompts, said, strict=True)]
        most = max((len(prompt.further) for prompt in prompts), default=0)
        decoder = plain() if most else None
        for number in range(most):
            going = [i for i, prompt in enumerate(prompts) if len(prompt.further) > number]
            assert decoder is not None
            replies = self._replies(decoder, [turns[i][-1] for i in going], number + 1)
            for i, reply in zip(going, replies, strict=True):
                said[i] += [
                    {"role": "assistant", "content": reply},
                    {"role": "user", "content": prompts[i].further[number]},
                ]
                turns[i].append(self.request(prompts[i], said[i], number + 2))
        return [request for each in turns for request in each]

    def request(self, prompt: Prompt, messages: Sequence[Message], turn: int = 1) -> Request:
        """One turn of a prompt.

        Args:
            messages: the conversation up to the reply that is to come.

        Raises:
            ConfigError: no tokens, or too many.
        """
        config = self.config
        name = prompt.name if turn == 1 else f"{prompt.name}#turn-{turn}"
        which = f"{prompt.place}: prompt {prompt.name!r}" + ("" if turn == 1 else f", turn {turn},")
        ids = tuple(self.pair.encode(messages))
        if not ids:
            raise ConfigError(KEY, config.workload.path, f"{which} has no tokens", "Remove it.")
        longest = prompt.max_new_tokens or config.max_new_tokens
        if len(ids) + longest > self.pair.context:
            raise ConfigError(
                "max_new_tokens",
                longest,
                f"{which} has {len(ids)} tokens, and the pair's context is {self.pair.context}",
                "Shorten the prompt or lower max_new_tokens.",
            )
        return Request(
            name,
            ids,
            request_seed(config.seed, name) if prompt.seed is None else prompt.seed,
            own_sampling(prompt, self.sampling, config.workload.path),
            longest,
            prompt.gamma,
            category=prompt.category,
            conversation=prompt.name,
            turn=turn,
        )

    def _replies(self, decoder: Decoder, requests: Sequence[Request], turn: int) -> list[str]:
        """The target's reply to each request, as text without what ended it."""
        size, replies = self.config.batch_size, []
        decoder.reserve(requests, size)
        for i in track(range(0, len(requests), size), f"replies of turn {turn}"):
            replies += [self._text(each) for each in decoder.run(requests[i : i + size])]
        return replies

    def _text(self, completion: Completion) -> str:
        ids = completion.token_ids
        kept = ids[:-1] if ids and ids[-1] in self.pair.stop_ids else ids
        return str(self.pair.tokenizer.decode(kept, skip_special_tokens=True))
