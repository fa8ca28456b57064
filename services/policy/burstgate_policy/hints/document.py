"""The stored form of a hint: one flat JSON object.

Holds the version, every field of the key under its own name, the verdict, the acceptance rate and
the number of samples, and nothing else. Reading checks everything, because the file may be old,
cut short or edited.
"""

import json
from dataclasses import asdict, fields
from typing import TypeVar

from burstgate_policy.core.hint import HINT_VERSION, Hint
from burstgate_policy.core.types import PolicyKey, Verdict


class HintDocumentError(ValueError):
    """A stored hint cannot be used; the message says why."""


T = TypeVar("T", int, float, str)


def encode_hint(hint: Hint) -> bytes:
    """A hint as its stored bytes."""
    document: dict[str, object] = {"version": HINT_VERSION, **asdict(hint.key)}
    document["verdict"] = hint.verdict.name.lower()
    document["acceptance_rate"] = hint.acceptance_rate
    document["samples"] = hint.samples
    return (json.dumps(document, indent=2) + "\n").encode()


def decode_hint(content: bytes, key: PolicyKey) -> Hint:
    """The hint of a pairing from its stored bytes; raises HintDocumentError."""
    document = _object(content)
    _check_version(document)
    for field in fields(PolicyKey):
        name = field.name
        stored = _typed(document, name, int) if name == "draft_width" else _typed(document, name, str)
        if stored != getattr(key, name):
            raise HintDocumentError(f"it belongs to another pairing: its {name} differs")
    verdict = _typed(document, "verdict", str)
    if verdict not in {"enable", "decline"}:
        raise HintDocumentError('its verdict must be "enable" or "decline"')
    rate = _typed(document, "acceptance_rate", float)
    samples = _typed(document, "samples", int)
    try:
        return Hint(key=key, verdict=Verdict[verdict.upper()], acceptance_rate=rate, samples=samples)
    except ValueError as error:
        raise HintDocumentError(f"its {error}") from error


def _object(content: bytes) -> dict[str, object]:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise HintDocumentError("it is not JSON") from error
    if not isinstance(document, dict):
        raise HintDocumentError("it is not a JSON object")
    return document


def _check_version(document: dict[str, object]) -> None:
    version = _typed(document, "version", int)
    if version in {1, 2}:
        raise HintDocumentError(f"it has the old version {version}; the pairing is re-profiled")
    if version != HINT_VERSION:
        raise HintDocumentError(f"its version is not {HINT_VERSION}")


def _typed(document: dict[str, object], name: str, kind: type[T]) -> T:
    if name not in document:
        raise HintDocumentError(f"its field {name} is missing")
    value = document[name]
    accepted = (int, float) if kind is float else kind
    if isinstance(value, bool) or not isinstance(value, accepted):
        raise HintDocumentError(f"its field {name} must be of type {kind.__name__}")
    try:
        return kind(value)
    except OverflowError as error:
        raise HintDocumentError(f"its field {name} is too large") from error
