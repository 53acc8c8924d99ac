"""Tokenizers of checkpoints, conversations as their token ids, and the tokens that begin and end thinking."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from specbench.core.errors import ConfigError, ModelError
from specbench.core.machine.files import Origin, is_library_error, reason, shown, wrap_library_errors
from specbench.models.tokenizer_files import check_tokenizer_files

_TRIAL = "Hello"
_SWITCHES = ("enable_thinking", "thinking")  # by which templates turn thinking on and off
Message = Mapping[str, str]  # role (system, user, assistant) and content
THINKING_KEY = "pair.thinking_tokens"
THINKING = (  # of Qwen, DeepSeek and others; of Mistral; of Seed
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
)


@dataclass(frozen=True)
class Chat:
    """How conversations are written for a model.

    Attributes:
        template: whether through the tokenizer's chat template; otherwise they are joined (:func:`joined`).
        system: what stands before every conversation that has no system prompt of its own; None for nothing.
        arguments: of the template, such as ``enable_thinking``.
    """

    template: bool
    system: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)


def load_tokenizer(folder: Path, source: Origin) -> PreTrainedTokenizerBase:
    """The tokenizer of a checked folder.

    Raises:
        ConfigError: whatever transformers raises; a tokenizer without tokens; see also
            :func:`specbench.models.tokenizer_files.check_tokenizer_files`.
    """
    check_tokenizer_files(folder, source)
    settings = folder / "tokenizer_config.json"
    code = source.json_object(settings).get("auto_map") if settings.exists() else None
    remedy = source.remedy
    if code:
        remedy = f"It has code of its own ({shown(code)}), which specbench does not run: choose another checkpoint."
    with source.library_errors("its tokenizer cannot be read", remedy):
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        ids = list(tokenizer.get_vocab().values())
    if not ids or min(ids) < 0:
        raise source.wrong("its tokenizer has no tokens", remedy)
    return tokenizer


def chat_of(
    tokenizer: PreTrainedTokenizerBase, chat: bool | None, system: str | None = None, thinking: bool | None = None
) -> Chat:
    """How conversations are written: as asked, and for ``chat=None`` by the chat template if there is one.

    Args:
        thinking: whether the template is to turn thinking on or off; None says nothing to it.

    Raises:
        ConfigError: there is no template, it does not work, or it does not know what was asked for.
    """
    has_template = getattr(tokenizer, "chat_template", None) is not None
    if chat and not has_template:
        raise ConfigError("pair.chat", chat, "the target's tokenizer has no chat template", "Use pair.chat=false.")
    chosen = has_template if chat is None else chat
    if not chosen:
        if thinking is not None:
            problem = "there is no chat template that could be told"
            raise ConfigError("pair.thinking", thinking, problem, "Use pair.thinking=null.")
        return Chat(False, system)
    trial = [{"role": "user", "content": _TRIAL}]
    with wrap_library_errors(
        "pair.chat", chosen, "the target's chat template does not work", "Mend it, or use pair.chat=false."
    ):
        _templated(tokenizer, trial, {})
    if system is not None:
        remedy = "Use pair.system=null, and say it in the prompts."
        with wrap_library_errors(
            "pair.system", shown(system), "the target's chat template takes no system prompt", remedy
        ):
            _templated(tokenizer, with_system(trial, system), {})
    return Chat(True, system, {} if thinking is None else {_switch(tokenizer, trial, thinking): thinking})


def _switch(tokenizer: PreTrainedTokenizerBase, trial: Sequence[Message], thinking: bool) -> str:
    """Returns the template's argument that turns thinking on and off: the first that changes the text."""
    for name in _SWITCHES:
        with wrap_library_errors(
            "pair.thinking", thinking, f"the chat template fails on {name}", "Use pair.thinking=null."
        ):
            on, off = (_templated(tokenizer, trial, {name: value}) for value in (True, False))
        if on != off:
            return name
    problem = f"the target's chat template knows no switch for it ({' or '.join(_SWITCHES)})"
    raise ConfigError("pair.thinking", thinking, problem, "Use pair.thinking=null.")


def with_system(messages: Sequence[Message], system: str | None) -> list[Message]:
    """A conversation with a system prompt before it, unless it has one or ``system`` is None."""
    if system is None or any(message["role"] in ("system", "developer") for message in messages):
        return list(messages)
    return [{"role": "system", "content": system}, *messages]


def joined(messages: Sequence[Message]) -> str:
    """A conversation as one text, for models without a chat template: a reply stands right behind what it continues,
    as the model wrote it, and everything else after a blank line."""
    text = ""
    for message in messages:
        text += message["content"] if message["role"] == "assistant" or not text else f"\n\n{message['content']}"
    return text


def token_ids(
    tokenizer: PreTrainedTokenizerBase, prompt: str | Sequence[Message], chat: Chat, vocab_size: int
) -> list[int]:
    """Token ids of a prompt, or of a conversation up to the reply that is to come.

    Raises:
        ModelError: the tokenizer or its template fails on this prompt, or gives ids that it does not have.
    """
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    messages = with_system(messages, chat.system)
    last = messages[-1]["content"]
    try:
        if chat.template:  # the template writes its own beginning of text
            ids = list(tokenizer(_templated(tokenizer, messages, chat.arguments), add_special_tokens=False).input_ids)
        else:
            ids = list(tokenizer(joined(messages)).input_ids)
    except BaseException as error:  # tokenizers raises Exception itself, and panics
        if not is_library_error(error):
            raise
        problem = f"its tokenizer fails on the prompt {shown(last)} ({type(error).__name__}: {reason(error)})"
        remedy = "Leave the prompt out, or use pair.chat=false." if chat.template else "Leave the prompt out."
        raise ModelError(f"pair.target: {problem}. {remedy}") from error
    if outside := [i for i in ids if not 0 <= i < vocab_size]:
        raise ModelError(
            f"pair.target: its tokenizer gives id {outside[0]} for the prompt {shown(last)}, and has ids below "
            f"{vocab_size}. Take tokenizer.json from the model's own release."
        )
    return ids


def _templated(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], arguments: Mapping[str, Any]) -> str:
    conversation: Any = [dict(message) for message in messages]
    text: Any = tokenizer.apply_chat_template(conversation, add_generation_prompt=True, tokenize=False, **arguments)
    return text


def thinking_ids(
    tokenizer: PreTrainedTokenizerBase, named: Sequence[str] | None, vocab_size: int
) -> tuple[int, int] | None:
    """The ids of the tokens that begin and end thinking.

    Args:
        named: their texts; None takes the first of THINKING that the tokenizer has.
        vocab_size: ids from here on are none of the model's.

    Returns:
        None if nothing is named, and the tokenizer has none of THINKING.

    Raises:
        ConfigError: not two texts, two equal texts, or a text that is no single token.
    """
    if named is None:
        vocabulary = tokenizer.get_vocab()
        ids = ([vocabulary.get(token, vocab_size) for token in both] for both in THINKING)
        return next(((start, end) for start, end in ids if max(start, end) < vocab_size), None)
    two = isinstance(named, Sequence) and not isinstance(named, str) and len(named) == 2 and named[0] != named[1]
    if not two or not all(isinstance(text, str) for text in named):
        raise ConfigError(
            THINKING_KEY, named, "not two different texts", "Name start and end, such as [<think>,</think>]."
        )
    start, end = (_single(tokenizer, text, vocab_size) for text in named)
    return start, end


def _single(tokenizer: PreTrainedTokenizerBase, text: str, vocab_size: int) -> int:
    ids = tokenizer.encode(text, add_special_tokens=False)
    if len(ids) != 1 or ids[0] >= vocab_size:
        problem = f"the target's tokenizer makes {len(ids)} tokens of {text!r}"
        raise ConfigError(THINKING_KEY, text, problem, "Name two texts that are a single token each.")
    return ids[0]
