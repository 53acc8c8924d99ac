"""The turns of conversations, each behind the target's replies to those before it.

A reply is decoded here, plainly and before anything is timed, by the request's own seed. So every turn is a request
like any other: plain and speculative decoding get the very same prompt, in every round and for every setting of a
sweep, and any protocol can run it. The reply is distributed as that of any lossless verifier; at temperature 0 it is
the very text. The replies of a lossy verifier are not fed back.

A request holds the whole conversation, and its time the time to feed that, as in Spec-Bench: nothing is cached from
turn to turn.
"""

import dataclasses
from collections.abc import Callable, Sequence

from specbench.core.machine.progress import say, track
from specbench.decoding import Completion, Decoder, Request
from specbench.runs.workloads import Prompt

Make = Callable[[Sequence[Prompt]], list[Request]]


def all_turns(prompts: Sequence[Prompt], make: Make, plain: Callable[[], Decoder], batch_size: int) -> list[Request]:
    """The requests of all turns, those of a conversation one after the other.

    Args:
        make: the requests of some prompts.
        plain: makes what decodes replies, if there is any turn to come after them.

    Raises:
        ConfigError: what ``make`` raises, such as for a turn that leaves no room in a model's context.
    """
    turns = [[make([prompt])] for prompt in prompts]  # of each conversation, the requests of each of its turns
    going = {place: prompt for place, prompt in enumerate(prompts) if prompt.further}
    decoder, cut, answered = plain() if going else None, 0, 0
    while decoder is not None and going:
        requests = [turns[place][-1][0] for place in going]  # of several continuations the first goes on
        replies = _replies(decoder, requests, batch_size)
        cut, answered = cut + sum(reply.finished == "length" for reply in replies), answered + len(replies)
        going = {place: after(going[place], reply.text) for place, reply in zip(going, replies, strict=True)}
        for place, prompt in going.items():
            turns[place].append(make([prompt]))
        going = {place: prompt for place, prompt in going.items() if prompt.further}
    if cut:
        say(
            f"{cut} of {answered} replies that stand before a later turn were cut at their max_new_tokens; "
            "the conversation goes on behind what there is. A larger max_new_tokens cuts fewer."
        )
    return [request for conversation in turns for turn in conversation for request in turn]


def after(prompt: Prompt, reply: str) -> Prompt:
    """The next turn of a conversation."""
    return dataclasses.replace(
        prompt,
        turn=prompt.turn + 1,
        before=(*prompt.messages, {"role": "assistant", "content": reply}),
        text=prompt.further[0],
        further=prompt.further[1:],
    )


def _replies(decoder: Decoder, requests: Sequence[Request], size: int) -> list[Completion]:
    """The target's reply to each request, without what stopped it."""
    as_shown = {"skip_special_tokens": True, "include_stop_str_in_output": False}
    shown = [
        dataclasses.replace(request, sampling=dataclasses.replace(request.sampling, **as_shown)) for request in requests
    ]
    decoder.reserve(shown, size)
    done: list[Completion] = []
    for i in track(range(0, len(shown), size), f"replies to turn {requests[0].turn}"):
        done += decoder.run(shown[i : i + size])
    return done
