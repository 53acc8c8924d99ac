"""Checkpoint folders, hub ids and shapes -> a pair of models ready to decode; the embedded pair takes the same path."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from specbench.core import extensions
from specbench.core.errors import ConfigError
from specbench.core.machine.devices import choose_device, choose_dtype, device_of_rank
from specbench.core.machine.files import shown, wrap_library_errors
from specbench.core.machine.progress import say
from specbench.models.cached_model import CachedModel
from specbench.models.checkpoint import Checkpoint
from specbench.models.forward import context_length
from specbench.models.random_weights import RandomModel
from specbench.models.shapes import RANDOM
from specbench.models.tokenizer import Chat, Message, chat_of, thinking_ids, token_ids
from specbench.models.vocabulary import SharedTokens, check_same_vocabulary, differences
from specbench.models.weights import alone
from specbench.sampling import SamplingParams, resolve

VOCABULARIES = SAME, DIFFERENT = ("same", "different")
DRAFT_DTYPE = "pair.draft_dtype"


@dataclass(frozen=True)
class Pair:
    """A target, a draft and the tokenizer of texts.

    Attributes:
        draft: None for a pair whose drafter needs no model beside the target.
        vocab_size: ids that may be emitted.
        stop_ids: ids that end a text (the tokenizer's and the target's generation config's).
        written: how prompts and conversations are: the chat template, a system prompt, thinking.
        translation: between the target's vocabulary and the draft's, if they differ; None if both have the tokenizer.
        thinking_ids: what begins and what ends thinking; None if no tokens for that are known.
    """

    target: PreTrainedModel
    draft: PreTrainedModel | None
    tokenizer: PreTrainedTokenizerBase
    vocab_size: int
    stop_ids: frozenset[int]
    written: Chat
    translation: SharedTokens | None = None
    thinking_ids: tuple[int, int] | None = None

    def __repr__(self) -> str:
        target, draft = (None if model is None else model.name_or_path for model in (self.target, self.draft))
        where = f"{str(self.target.dtype).removeprefix('torch.')} on {self.target.device}"
        return f"Pair(target={target!r}, draft={draft!r}, vocab_size={self.vocab_size}, chat={self.chat}, {where})"

    @property
    def chat(self) -> bool:
        """Whether prompts are wrapped in the tokenizer's chat template."""
        return self.written.template

    @property
    def context(self) -> int:
        """The longest sequence that all models can hold."""
        models = [self.target] if self.draft is None else [self.target, self.draft]
        return min(context_length(model.config) for model in models)

    @cached_property
    def most_characters(self) -> int:
        """The characters above which no prompt fits into the context. A tokenizer may drop some, such as repeated
        spaces: twice as many as the longest tokens have are let through."""
        return 2 * self.context * max(map(len, self.tokenizer.get_vocab()))

    def encode(self, prompt: str | Sequence[Message]) -> list[int]:
        """Token ids of a prompt, or of a conversation up to its next reply, through the chat template if the pair uses
        one. Raises ModelError.

        Args:
            prompt: a text, or messages with ``role`` and ``content``.
        """
        return token_ids(self.tokenizer, prompt, self.written, self.vocab_size)

    def resolved(self, sampling: SamplingParams) -> SamplingParams:
        """Sampling parameters in this vocabulary's ids. Raises ConfigError for ids that it does not have, a structure
        that cannot be, and a budget of thinking where no tokens begin and end it."""

        def encode(text: str) -> list[int]:
            with wrap_library_errors("sampler.bad_words", shown(text), "the tokenizer fails on it", "Leave it out."):
                return list(self.tokenizer.encode(text, add_special_tokens=False))

        params = resolve(sampling, encode, self.stop_ids, self.vocab_size, self.thinking_ids)
        if params.structure is None:
            return params
        provider = extensions.provider("structured_outputs")
        return provider.constrain(params, self.tokenizer, self.vocab_size, params.ids_that_end(self.stop_ids))


@alone()
def load_pair(
    target: str | os.PathLike[str],
    draft: str | os.PathLike[str] | None = None,
    *,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    draft_dtype: str | torch.dtype | None = None,
    chat: bool | None = None,
    system: str | None = None,
    thinking: bool | None = None,
    thinking_tokens: Sequence[str] | None = None,
    download: bool = False,
    parallel: str = "none",
    vocabularies: str = "same",
    check: Callable[[PreTrainedConfig], None] | None = None,
) -> Pair:
    """Loads a target and a draft model after comparing their vocabularies. Threads wait for one another.

    Args:
        target, draft: a local folder (a text or a Path), a hub id, ``embedded:target`` and ``embedded:draft``, or
            ``random:`` and a name of shapes.py, for random weights. No draft is needed by drafters without a model,
            such as ``prompt_lookup``, nor by ``layer_skip``, which drafts with the target's own layers.
        device: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:N", or a torch.device.
        dtype: "auto" (bfloat16 on a GPU, float32 on a CPU), "float32", "bfloat16" or "float16", or a torch.dtype.
        draft_dtype: likewise of the draft alone; None is the target's.
        chat: use the chat template; None uses it if the target's tokenizer has one.
        system: a system prompt for every prompt that has none of its own.
        thinking: tell the chat template to turn thinking on or off; None leaves it as the template has it.
        thinking_tokens: the two that begin and end thinking; None takes the known ones, if the target has them.
        download: whether a hub id may be fetched; otherwise only what the local hub cache holds is used.
        parallel: "tensor" shards the target over the processes that torchrun started, a GPU each, and every one of
            them has to call this; "none" keeps it whole.
        vocabularies: "same" refuses a draft with another vocabulary than the target's; "different" takes it, and finds
            out what the two share.
        check: is called with the target's configuration before weights are fetched or read, and may raise.

    Returns:
        Pair: the models, their tokenizer, and the ids that end a text.

    Raises:
        ConfigError: a folder that is missing or broken, pickled weights, an unknown device or dtype; a chat template
            that does not know what was asked for.
        ModelError: different vocabularies, weights that the files lack, or an architecture that cannot run with our
            cache or be sharded.

    Example:
        >>> import specbench
        >>> pair = specbench.load_pair("embedded:target", "embedded:draft")
        >>> pair.vocab_size
        4096
    """
    for key, value in (("pair.chat", chat), ("pair.thinking", thinking), ("pair.download", download)):
        if not isinstance(value, bool | None):
            raise ConfigError(key, value, "neither true nor false", "Use true or false.")
    others = None if parallel == "none" else extensions.provider("parallel")
    if others is not None and not others.applies(parallel):
        others = None
    chosen_device = choose_device(device if others is None else device_of_rank(str(device)))
    chosen_dtype = choose_dtype(dtype, chosen_device)
    dtype_of_draft = chosen_dtype if draft_dtype is None else choose_dtype(draft_dtype, chosen_device, DRAFT_DTYPE)
    of_target = _opened("pair.target", target, download)
    if check is not None:
        check(of_target.config)
    of_draft = None if draft is None else _opened("pair.draft", draft, download)
    tokenizer = of_target.tokenizer
    if vocabularies not in VOCABULARIES:
        raise ConfigError("pair.vocabularies", vocabularies, "not known", f"Use {' or '.join(VOCABULARIES)}.")
    differ = of_draft is not None and vocabularies == DIFFERENT
    translation = _translation(of_target, of_draft) if differ else None
    if of_draft is not None and vocabularies == SAME:
        check_same_vocabulary(tokenizer, of_draft.tokenizer)
        if of_draft.vocab_size != of_target.vocab_size:  # shapes, which share a tokenizer
            problem = f"its vocabulary has {of_draft.vocab_size} ids, and {target}'s {of_target.vocab_size}"
            raise of_draft.source.wrong(problem, "Use two shapes of one family, or two checkpoints.")
    written = chat_of(tokenizer, chat, system, thinking)
    thought = thinking_ids(tokenizer, thinking_tokens, of_target.vocab_size)
    if others is not None:
        others.join(of_target, chosen_device)
    for source in filter(None, (of_target, of_draft)):
        source.complete()
    if others is None:
        model = of_target.load(chosen_dtype, chosen_device)
    else:
        model = others.load(of_target, chosen_dtype, chosen_device)
    draft_model = None if of_draft is None else of_draft.load(dtype_of_draft, chosen_device)
    stops = of_target.stop_ids(model)
    return Pair(model, draft_model, tokenizer, of_target.vocab_size, stops, written, translation, thought)


def _translation(target: Checkpoint | RandomModel, draft: Checkpoint | RandomModel) -> SharedTokens | None:
    """Between two vocabularies; None if they are the same."""
    if target.vocab_size == draft.vocab_size and not differences(target.tokenizer, draft.tokenizer):
        return None
    provider = extensions.provider("different_vocabularies")
    shared = provider.translation(*((side.tokenizer, side.vocab_size) for side in (target, draft)))
    say(f"pair.vocabularies={DIFFERENT}: {shared.words()}")
    return shared


def cached_draft(pair: Pair) -> CachedModel:
    """Returns the pair's draft with a cache of its own, whose tokens and logits are the target's.

    Raises:
        ModelError: vocabularies that share nothing.
    """
    assert pair.draft is not None
    # Logits in the target's dtype, whatever the draft's own is: verifiers read rows of both side by side.
    dtype = pair.target.dtype
    if pair.translation is None:
        return CachedModel(pair.draft, pair.vocab_size, "draft", dtype)
    return extensions.provider("different_vocabularies").cached_draft(pair.draft, pair.translation, "draft", dtype)


def _opened(key: str, place: object, download: bool) -> Checkpoint | RandomModel:
    if not isinstance(place, str | os.PathLike):
        remedy = "Use a folder, a hub id (owner/name), embedded:target or random:NAME."
        raise ConfigError(key, place, "not the name of a model", remedy)
    name = os.fspath(place)
    return RandomModel.opened(key, name) if name.startswith(RANDOM) else Checkpoint.opened(key, name, download)
