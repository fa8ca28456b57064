"""The stored form of what is remembered of a pairing: one JSON document.

Holds the key, the settled verdict with the numbers it rests on, a person's pin, the times of both and
a revision, and has no field that anything of a request could be put in. Reading checks everything,
because a document may be old, cut short, edited or somebody else's. Knows nothing of where documents
are kept.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Any, Final, Literal

import pydantic

from burstgate_policy.core.types import PolicyKey

FORMAT: Final = 4
"""Version 1 lacked the draft width in its key, version 2 was judged without measured plain steps, and
version 3 had neither evidence nor an expiry."""

OLD_FORMATS = frozenset({1, 2, 3})

TOMBSTONE_TTL_S = 86_400.0
"""How long a document without a verdict or a pin is kept: it tells the other replicas of a reset or an
unpin, and a replica that was away for longer profiles again anyway."""

MAX_DOCUMENT_BYTES = 64 * 1024
"""A document has under 4 KiB; anything far larger is not ours."""

MAX_DRAFT_WIDTH = 64
"""No drafter is run with a wider verify."""

MAX_NAME_BYTES = 256
"""Names, fingerprints and versions are short."""

MAX_REASON_CHARACTERS = 500
MAX_AUTHOR_CHARACTERS = 100

_Finite = Annotated[float, pydantic.Field(allow_inf_nan=False)]
_NotNegative = Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]
_Count = Annotated[int, pydantic.Field(ge=0, lt=2**63)]
_Rate = Annotated[float, pydantic.Field(ge=0, le=1, allow_inf_nan=False)]
# Within the range of a protobuf timestamp.
_UnixSeconds = Annotated[float, pydantic.Field(ge=0, lt=253_402_300_800, allow_inf_nan=False)]


class HintDocumentError(ValueError):
    """A stored document cannot be used; the message says why."""


class _Part(pydantic.BaseModel):
    # A later release may add fields; what it changes in the meaning of these gets another version.
    model_config = pydantic.ConfigDict(frozen=True, strict=True, extra="ignore")


class StoredEvidence(_Part):
    """What a verdict rests on: counts, coarse times and an interval."""

    rounds: _Count
    plain_steps: _Count
    traffic_kinds: _Count
    speedup: _Finite
    speedup_low: _Finite
    speedup_high: _Finite
    confidence: _Rate
    spread: _NotNegative
    first_seen_at: _UnixSeconds
    last_seen_at: _UnixSeconds
    round_ms: _NotNegative
    plain_step_ms: _NotNegative


class StoredVerdict(_Part):
    """A settled verdict."""

    verdict: Literal["enable", "decline"]
    acceptance_rate: _Rate
    """Rounded to two decimals."""
    samples: Annotated[int, pydantic.Field(ge=1, lt=2**31)]
    evidence: StoredEvidence | None = None
    """None where the profile had no usable times and the static gate decided."""
    settled_at: _UnixSeconds
    expires_at: _UnixSeconds
    policy_version: Annotated[int, pydantic.Field(ge=1, lt=2**63)] = 1
    """The version of the pairing's policy when it settled."""

    @pydantic.field_validator("acceptance_rate")
    @classmethod
    def _coarse(cls, rate: float) -> float:
        return round(rate, 2)


class StoredPin(_Part):
    """A person's decision."""

    speculate: bool
    reason: Annotated[str, pydantic.Field(min_length=1, max_length=MAX_REASON_CHARACTERS)]
    author: Annotated[str, pydantic.Field(min_length=1, max_length=MAX_AUTHOR_CHARACTERS)]
    pinned_at: _UnixSeconds
    expires_at: _UnixSeconds | None = None


class HintDocument(_Part):
    """What is remembered of one pairing."""

    version: Literal[4] = FORMAT
    revision: Annotated[int, pydantic.Field(ge=0, lt=2**53)] = 0
    """Counts the changes of the stored document; 0 for one that was never stored."""
    key: PolicyKey
    settled: StoredVerdict | None = None
    verdict_at: _UnixSeconds = 0.0
    """When the verdict was settled or reset; the later of two replicas' words holds."""
    pin: StoredPin | None = None
    pin_at: _UnixSeconds = 0.0
    """When the pairing was pinned or unpinned."""

    @property
    def key_hash(self) -> str:
        """The digest that names the document."""
        return self.key.hash

    def at(self, now_s: float) -> HintDocument:
        """The document as it holds at a time: without what has expired by then."""
        settled, pin = self.settled, self.pin
        if settled is not None and settled.expires_at <= now_s:
            settled = None
        if pin is not None and pin.expires_at is not None and pin.expires_at <= now_s:
            pin = None
        if settled is self.settled and pin is self.pin:
            return self
        return self.model_copy(update={"settled": settled, "pin": pin})

    @property
    def expires_at(self) -> float | None:
        """When the document says nothing any more; None for never."""
        if self.pin is not None and self.pin.expires_at is None:
            return None
        ends = [part.expires_at for part in (self.settled, self.pin) if part is not None]
        known = [end for end in ends if end is not None]
        return max(known) if known else max(self.verdict_at, self.pin_at) + TOMBSTONE_TTL_S

    def says_the_same_as(self, other: HintDocument) -> bool:
        """Whether two documents differ in nothing but their revision."""
        return self.model_copy(update={"revision": other.revision}) == other


def merge(ours: HintDocument, theirs: HintDocument) -> HintDocument:
    """What two replicas know of a pairing together: the later word on the verdict, the later on the pin.

    Whichever way round they are given, and however often, the result is the same.
    """
    verdict = max((ours, theirs), key=_verdict_order)
    pin = max((ours, theirs), key=_pin_order)
    return ours.model_copy(
        update={
            "revision": max(ours.revision, theirs.revision),
            "settled": verdict.settled,
            "verdict_at": verdict.verdict_at,
            "pin": pin.pin,
            "pin_at": pin.pin_at,
        }
    )


def encode(document: HintDocument) -> bytes:
    """A document as its stored bytes."""
    return document.model_dump_json(indent=2).encode() + b"\n"


def decode(content: bytes | str) -> HintDocument:
    """A document from its stored bytes; raises HintDocumentError."""
    if len(content) > MAX_DOCUMENT_BYTES:
        raise HintDocumentError(f"it is too large: a hint has at most {MAX_DOCUMENT_BYTES} bytes")
    try:
        # Duplicate names, NaN and the like are seen by pydantic; this only finds out whose format it is.
        loose = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise HintDocumentError("it is not JSON") from error
    if not isinstance(loose, dict):
        raise HintDocumentError("it is not a JSON object")
    _check_version(loose)
    try:
        document = HintDocument.model_validate_json(content)
    except pydantic.ValidationError as error:
        raise HintDocumentError(_first_problem(error)) from error
    _check_key(document.key)
    return document


def _check_key(key: PolicyKey) -> None:
    """Holds a key to the limits of a lane's."""
    if not 1 <= key.draft_width <= MAX_DRAFT_WIDTH:
        raise HintDocumentError(f"its field key.draft_width must be from 1 to {MAX_DRAFT_WIDTH}")
    for name, value in dataclasses.asdict(key).items():
        if isinstance(value, str) and len(value.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
            raise HintDocumentError(f"its field key.{name} must have at most {MAX_NAME_BYTES} bytes")


def _check_version(loose: dict[str, Any]) -> None:
    version = loose.get("version")
    if isinstance(version, bool) or not isinstance(version, int):
        raise HintDocumentError("its field version must be a whole number")
    if version in OLD_FORMATS:
        raise HintDocumentError(f"it has the old version {version}; the pairing is re-profiled")
    if version != FORMAT:
        raise HintDocumentError(f"its version {version} is not {FORMAT}")


def _first_problem(error: pydantic.ValidationError) -> str:
    problem = error.errors(include_url=False, include_input=False)[0]
    path = ".".join(map(str, problem["loc"]))
    if problem["type"] == "missing":
        return f"its field {path} is missing"
    said = problem["msg"].removeprefix("Input ")
    return f"its field {path} {said}" if path else f"its {said}"


def _verdict_order(document: HintDocument) -> tuple[float, bool, str]:
    # Two words of one instant are ordered by their content, so that every replica picks the same.
    settled = document.settled
    return (document.verdict_at, settled is not None, settled.model_dump_json() if settled else "")


def _pin_order(document: HintDocument) -> tuple[float, bool, str]:
    pin = document.pin
    return (document.pin_at, pin is not None, pin.model_dump_json() if pin else "")
