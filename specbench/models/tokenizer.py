"""Tokenizers of checkpoints, and prompts as their token ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from specbench.errors import ConfigError, ModelError
from specbench.files import Source, reason, shown
from specbench.foreign import foreign

_TRIAL = "Hello"


def load_tokenizer(folder: Path, source: Source) -> PreTrainedTokenizerBase:
    """The tokenizer of a checked folder.

    Raises:
        ConfigError: whatever transformers raises; a tokenizer without tokens.
    """
    settings = folder / "tokenizer_config.json"
    code = source.json_object(settings).get("auto_map") if settings.exists() else None
    remedy = source.remedy
    if code:
        remedy = f"It has code of its own ({shown(code)}), which specbench does not run: choose another checkpoint."
    with foreign(source.key, source.value, "its tokenizer cannot be read", remedy):
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        ids = list(tokenizer.get_vocab().values())
    if not ids or min(ids) < 0:
        raise source.wrong("its tokenizer has no tokens", remedy)
    return tokenizer


def wants_chat(tokenizer: PreTrainedTokenizerBase, chat: bool | None) -> bool:
    """Whether prompts go through the chat template: as asked, or, for None, where there is one.

    Raises:
        ConfigError: there is none, or it does not work.
    """
    has_template = getattr(tokenizer, "chat_template", None) is not None
    if chat and not has_template:
        raise ConfigError("pair.chat", chat, "the target's tokenizer has no chat template", "Use pair.chat=false.")
    chosen = has_template if chat is None else chat
    if chosen:
        with foreign(
            "pair.chat", chosen, "the target's chat template does not work", "Mend it, or use pair.chat=false."
        ):
            _templated(tokenizer, _TRIAL)
    return chosen


def token_ids(tokenizer: PreTrainedTokenizerBase, prompt: str, chat: bool, vocab_size: int) -> list[int]:
    """Token ids of a prompt, through the chat template where ``chat`` says so.

    Raises:
        ModelError: the tokenizer or its template fails on this prompt, or gives ids that it does not have.
    """
    try:
        if chat:  # the template writes its own beginning of text
            ids = list(tokenizer(_templated(tokenizer, prompt), add_special_tokens=False).input_ids)
        else:
            ids = list(tokenizer(prompt).input_ids)
    except Exception as error:  # tokenizers raises this very class
        problem = f"its tokenizer fails on the prompt {shown(prompt)} ({type(error).__name__}: {reason(error)})"
        remedy = "Leave the prompt out, or use pair.chat=false." if chat else "Leave the prompt out."
        raise ModelError(f"pair.target: {problem}. {remedy}") from error
    if outside := [i for i in ids if not 0 <= i < vocab_size]:
        raise ModelError(
            f"pair.target: its tokenizer gives id {outside[0]} for the prompt {shown(prompt)}, and has ids below "
            f"{vocab_size}. Take tokenizer.json from the model's own release."
        )
    return ids


def _templated(tokenizer: PreTrainedTokenizerBase, prompt: str) -> str:
    message = [{"role": "user", "content": prompt}]
    text: Any = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
    return text
