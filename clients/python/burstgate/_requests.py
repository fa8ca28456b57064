"""Turns what a caller asks for into the decode service's requests.

Owns the proto side of options.py. What the wire cannot carry (a negative token id, text that is not
Unicode, two options that exclude each other) is refused here as InvalidRequest with the field's name; every
other limit is the server's to check.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, cast

from burstgate.decode.v1 import decode_pb2
from burstgate.errors import refused
from burstgate.options import Message, Priority, Prompt, Sampling, Speculation, Stop

_MODES = {
    "auto": decode_pb2.SPECULATION_MODE_AUTO,
    "on": decode_pb2.SPECULATION_MODE_ON,
    "off": decode_pb2.SPECULATION_MODE_OFF,
}
_PRIORITIES = {
    "low": decode_pb2.PRIORITY_LOW,
    "normal": decode_pb2.PRIORITY_NORMAL,
    "high": decode_pb2.PRIORITY_HIGH,
}


@dataclass(frozen=True, slots=True)
class PromptOptions:
    """A prompt with how it is to be read."""

    prompt: Prompt
    raw: bool
    system: str | None
    chat_template_kwargs: Mapping[str, Any] | None


def generate_request(
    prompt: PromptOptions,
    *,
    model: str,
    sampling: Sampling,
    stop: Stop,
    speculation: Speculation,
    draft_width: int | None,
    max_tokens: int | None,
    logprobs: int | None,
    n: int,
    priority: Priority,
) -> decode_pb2.GenerateRequest:
    """Builds the request of Generate."""
    request = decode_pb2.GenerateRequest()
    _set(request, "", model=model, n=n, max_tokens=max_tokens, logprobs=logprobs)
    request.group_deltas = request.n > 1
    _set_prompt(request, prompt)
    _set(request.sampling, "sampling.", **{f.name: getattr(sampling, f.name) for f in fields(sampling)})
    _set(request.stop, "stop.", **{f.name: getattr(stop, f.name) for f in fields(stop)})
    if speculation not in _MODES:
        raise refused("speculation.mode", f"{speculation!r} is not one of {', '.join(_MODES)}")
    request.speculation.mode = _MODES[speculation]
    if priority not in _PRIORITIES:
        raise refused("priority", f"{priority!r} is not one of {', '.join(_PRIORITIES)}")
    request.priority = _PRIORITIES[priority]
    if draft_width == 0:
        raise refused("speculation.max_draft_width", "2 or more is allowed; leave it out for the server's")
    _set(request.speculation, "speculation.", max_draft_width=draft_width)
    return request


def count_tokens_request(prompt: PromptOptions, *, model: str, return_ids: bool) -> decode_pb2.CountTokensRequest:
    """Builds the request of CountTokens."""
    request = decode_pb2.CountTokensRequest()
    _set(request, "", model=model, return_ids=return_ids)
    _set_prompt(request, prompt)
    return request


def _set_prompt(request: decode_pb2.GenerateRequest | decode_pb2.CountTokensRequest, options: PromptOptions) -> None:
    prompt = options.prompt
    if isinstance(prompt, str) and not options.raw:
        prompt = (Message("user", prompt),)
    if isinstance(prompt, str):
        _require_chat(options, "a raw text")
        _set(request, "", text=prompt)
    elif not prompt:
        raise refused("prompt", "a text, at least one message, or at least one token id is needed")
    elif all(isinstance(item, Message) for item in prompt):
        if options.raw:
            raise refused("prompt", "raw is for a text; messages always use the chat template")
        _set_chat(request.chat, cast("Sequence[Message]", prompt), options)
    else:
        _require_chat(options, "token ids")
        _set(request.tokens, "tokens.", ids=prompt)


def _set_chat(chat: decode_pb2.ChatPrompt, messages: Sequence[Message], options: PromptOptions) -> None:
    for index, message in enumerate(messages):
        field = f"chat.messages[{index}]."
        _set(chat.messages.add(), field, role=message.role, content=message.content)
    _set(chat, "chat.", system=options.system)
    if options.chat_template_kwargs:
        with _named("chat.chat_template_kwargs"):
            chat.chat_template_kwargs.update(dict(options.chat_template_kwargs))


def _require_chat(options: PromptOptions, kind: str) -> None:
    if options.system is not None:
        raise refused("chat.system", f"a system message needs the chat template, and {kind} has none")
    if options.chat_template_kwargs:
        raise refused("chat.chat_template_kwargs", f"{kind} has no chat template")


def _set(message: Any, prefix: str, **values: object) -> None:
    """Sets fields by name. None, and what is empty anyway, leaves a field unset."""
    for name, value in values.items():
        if value is None or value is False or (isinstance(value, Sized) and not value):
            continue
        with _named(prefix + name):
            if isinstance(value, Mapping):
                getattr(message, name).update(value)
            elif isinstance(value, str | int | float):
                setattr(message, name, value)
            else:
                getattr(message, name).extend(_items(value))


def _items(value: object) -> Sequence[object]:
    if isinstance(value, Sequence):
        return value
    raise TypeError(f"{value!r} is not a sequence")


@contextmanager
def _named(field: str) -> Iterator[None]:
    """Names the field of a value that protobuf cannot hold."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise refused(field, f"not valid Unicode at character {error.start}") from error
    except (AttributeError, TypeError, ValueError) as error:
        raise refused(field, f"cannot be sent: {error}") from error
