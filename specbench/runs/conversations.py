"""The turns of conversations, each behind the target's replies to those before it.

A reply is decoded here, plainly and before anything is timed, by the request's own seed. So every turn is a request
like any other: plain and speculative decoding get the very same prompt, in every round and for every setting of a
sweep, and any protocol can run it. The reply is distributed as that of any lossless verifier; at temperature 0 it is
the very text. The replies of a lossy verifier are not fed back.

A request holds the whole conversation, and its time the time to feed that, as in Spec-Bench: nothing is cached from
turn to turn.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from specbench.decoding import Completion, Decoder, Request
from specbench.models import Pair
from specbench.progress import track
from specbench.workloads import Prompt

Make = Callable[[Sequence[Prompt]], list[Request]]


def all_turns(
    prompts: Sequence[Prompt], make: Make, plain: Callable[[], Decoder], pair: Pair, batch_size: int
) -> list[Request]:
    """The requests of all turns, those of a conversation one after the other.

    Args:
        make: the requests of some prompts.
        plain: makes what decodes replies, if there is any turn to come after them.

    Raises:
        ConfigError: what ``make`` raises, such as for a turn that leaves no room in a model's context.
    """
    turns = [make([prompt]) for prompt in prompts]
    going = {place: prompt for place, prompt in enumerate(prompts) if prompt.further}
    decoder = plain() if going else None
    while decoder is not None and going:
        asked = [turns[place][-1] for place in going]
        replies = _replies(decoder, asked, pair, batch_size)
        going = {place: after(going[place], reply) for place, reply in zip(going, replies, strict=True)}
        for place, prompt in going.items():
            turns[place] += make([prompt])
        going = {place: prompt for place, prompt in going.items() if prompt.further}
    return [request for each in turns for request in each]


def after(prompt: Prompt, reply: str) -> Prompt:
    """The next turn of a conversation."""
    return dataclasses.replace(
        prompt,
        turn=prompt.turn + 1,
        before=(*prompt.messages, {"role": "assistant", "content": reply}),
        text=prompt.further[0],
        further=prompt.further[1:],
    )


def _replies(decoder: Decoder, requests: Sequence[Request], pair: Pair, size: int) -> list[str]:
    """The target's reply to each request."""
    decoder.reserve(requests, size)
    done: list[Completion] = []
    for i in track(range(0, len(requests), size), f"replies to turn {requests[0].turn}"):
        done += decoder.run(requests[i : i + size])
    return [_text(each, pair) for each in done]


def _text(completion: Completion, pair: Pair) -> str:
    """A reply without the token that stopped it."""
    ids = completion.token_ids
    kept = ids[:-1] if ids and ids[-1] in pair.stop_ids else ids
    return str(pair.tokenizer.decode(kept, skip_special_tokens=True))
