"""Turns a request's prompt into token ids: chat template, tokeniser, and the limits the model sets.

Everything here is pure Python on the tokeniser and runs off the event loop.
"""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from burstgate_decode.models.target import Target
from burstgate_runtime.faults import Fault, FaultKind, Violation, invalid

ROLES = ("system", "user", "assistant", "tool")
# Arguments that say how the template is applied, such as tokenize or chat_template, are not its variables.
_NOT_VARIABLES = frozenset(inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters) - {
    "tools",
    "documents",
}


@dataclass(frozen=True)
class Chat:
    """A conversation for the chat template."""

    messages: Sequence[tuple[str, str]]
    system: str
    template_kwargs: Mapping[str, Any]


@dataclass(frozen=True)
class RawText:
    """Text without a template."""

    text: str


@dataclass(frozen=True)
class TokenIds:
    """Tokens as they are."""

    ids: Sequence[int]


Prompt: TypeAlias = Chat | RawText | TokenIds


def tokenize(target: Target, prompt: Prompt) -> tuple[int, ...]:
    """The prompt's tokens. Raises a fault when it is empty or malformed."""
    match prompt:
        case Chat():
            field, ids = "chat", _render(target, prompt)
        case RawText(text):
            field, ids = "text", _encode(target, text)
        case TokenIds(given):
            field, ids = "tokens.ids", _known(target, given)
    if not ids:
        raise invalid(Violation(field, "must not be empty"))
    return tuple(ids)


def check_room(target: Target, prompt: Sequence[int]) -> None:
    """Refuses a prompt that leaves no room for one token of an answer."""
    most = target.context_length - 1
    if len(prompt) > most:
        raise invalid(Violation("prompt", f"must have at most {most} tokens for this model, got {len(prompt)}"))


def check_token_ids(target: Target, field: str, ids: Sequence[int]) -> None:
    """Refuses ids outside the vocabulary."""
    for place, token in enumerate(ids):
        if not 0 <= token < target.vocab_size:
            raise invalid(Violation(f"{field}[{place}]", f"must be below {target.vocab_size}, got {token}"))


def check_biased_ids(target: Target, ids: Iterable[int]) -> None:
    """Refuses biases of ids outside the vocabulary."""
    for token in ids:
        if not 0 <= token < target.vocab_size:
            raise invalid(Violation(f"sampling.logit_bias[{token}]", f"must be of a token below {target.vocab_size}"))


def _render(target: Target, chat: Chat) -> list[int]:
    if not target.has_chat_template:
        raise Fault(
            FaultKind.FAILED_PRECONDITION,
            "NO_CHAT_TEMPLATE",
            f"target {target.name} has no chat template; send text or token ids",
        )
    messages = [{"role": role, "content": content} for role, content in chat.messages]
    if not messages:
        raise invalid(Violation("chat.messages", "must not be empty"))
    for place, message in enumerate(messages):
        if message["role"] not in ROLES:
            raise invalid(
                Violation(
                    f"chat.messages[{place}].role",
                    f"must be one of {', '.join(ROLES)}, got {message['role']!r}",
                )
            )
    for name in sorted(chat.template_kwargs.keys() & _NOT_VARIABLES):
        raise invalid(Violation(f"chat.chat_template_kwargs[{name}]", "is no variable of the chat template"))
    if chat.system:
        if any(message["role"] == "system" for message in messages):
            raise invalid(Violation("chat.system", "must be empty when chat.messages holds a system message"))
        messages.insert(0, {"role": "system", "content": chat.system})
    try:
        ids: list[int] = target.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, **chat.template_kwargs
        )
    except (TemplateError, TypeError, ValueError, KeyError) as error:
        raise Fault(
            FaultKind.INVALID_ARGUMENT,
            "CHAT_TEMPLATE_REJECTED",
            f"the chat template of {target.name} rejects this conversation: {error}",
            violations=(Violation("chat", f"was rejected by the chat template: {error}"),),
        ) from error
    return ids


def _encode(target: Target, text: str) -> list[int]:
    bos = target.tokenizer.bos_token
    ids: list[int] = target.tokenizer.encode(text, add_special_tokens=bos is None or not text.startswith(bos))
    return ids if text else []


def _known(target: Target, ids: Sequence[int]) -> list[int]:
    check_token_ids(target, "tokens.ids", ids)
    return list(ids)
