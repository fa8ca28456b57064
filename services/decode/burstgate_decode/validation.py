"""The limits of every request field, each declared once, and their translation into one fault.

The models below hold the limits; pydantic finds the violations; `checked` names all of them at once.
What depends on the served model (vocabulary, context) is checked where it is known, in `prompts`.
"""

import enum
import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic_core import PydanticCustomError

from burstgate_decode.engine.request import Priority, SamplingParams, SpeculationChoice
from burstgate_runtime.faults import Violation, invalid

MAX_ANSWERS = 8
MAX_TOP_LOGPROBS = 20
TENANT_KEY = "x-burstgate-tenant"
_MAX_SEED = (1 << 64) - 1
# The engine computes in float32: a logit over less than this is no finite number there, and less still is 0.
_LEAST_DIVISOR = 1e-30

_Number = Annotated[float, Field(allow_inf_nan=False)]


def _at_most_256_bytes(text: str) -> str:
    size = len(text.encode())
    if size > 256:
        raise PydanticCustomError("too_long", "must have at most 256 bytes, has {size}", {"size": size})
    return text


class _Limits(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class SamplingLimits(_Limits):
    """`SamplingOptions`."""

    temperature: _Number = Field(default=0.0, ge=0, le=10)
    top_p: _Number = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    min_p: _Number = Field(default=0.0, ge=0, lt=1)
    repetition_penalty: _Number = Field(default=1.0, gt=0, le=10)
    presence_penalty: _Number = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: _Number = Field(default=0.0, ge=-2, le=2)
    logit_bias: dict[int, Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]] = Field(
        default={}, max_length=1024
    )
    seed: int | None = Field(default=None, ge=0, le=_MAX_SEED)

    def params(self) -> SamplingParams:
        """The engine's form; a missing seed is drawn."""
        fields = self.model_dump(exclude={"logit_bias", "seed"})
        seed = secrets.randbits(63) if self.seed is None else self.seed
        for name in ("top_p", "repetition_penalty"):
            fields[name] = max(fields[name], _LEAST_DIVISOR)
        if self.temperature < _LEAST_DIVISOR:
            fields["temperature"] = 0.0
        return SamplingParams(**fields, logit_bias=tuple(sorted(self.logit_bias.items())), seed=seed)


class StopLimits(_Limits):
    """`StopOptions`."""

    strings: list[Annotated[str, StringConstraints(min_length=1), AfterValidator(_at_most_256_bytes)]] = Field(
        default=[], max_length=16
    )
    token_ids: list[int] = Field(default=[], max_length=64)
    ignore_eos: bool = False


class SpeculationLimits(_Limits):
    """`SpeculationOptions`."""

    mode: SpeculationChoice = SpeculationChoice.AUTO
    max_draft_width: int = Field(default=0, ge=0, le=64)


class GenerateLimits(_Limits):
    """`GenerateRequest` without its prompt."""

    model: Annotated[str, StringConstraints(max_length=256)] = ""
    sampling: SamplingLimits = SamplingLimits()
    stop: StopLimits = StopLimits()
    speculation: SpeculationLimits = SpeculationLimits()
    max_tokens: int | None = Field(default=None, ge=1, le=1_000_000)
    logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    n: int = Field(default=0, ge=0, le=MAX_ANSWERS)
    priority: Priority = Priority.NORMAL


def tenant_of(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """The tenant that a call's metadata names; empty where it names none. Raises `Fault` for a name that is none."""
    names = [value for key, value in metadata if key == TENANT_KEY]
    if not names:
        return ""
    name = names[0] if len(names) == 1 else None
    if not isinstance(name, str) or not re.fullmatch(r"[ -~]{1,64}", name):
        given = f"{len(names)} values" if len(names) > 1 else repr(name)[:64]
        raise invalid(Violation(TENANT_KEY, f"must be one value of 1 to 64 printable ASCII characters, got {given}"))
    return name


_ENUMS: dict[str, type[enum.Enum]] = {kind.__name__: kind for kind in (Priority, SpeculationChoice)}
_Model = TypeVar("_Model", bound=BaseModel)


def checked(model: type[_Model], fields: Mapping[str, Any]) -> _Model:
    """Validates a request's fields; raises one fault naming each field that breaks its limit."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise invalid(*(_violation(problem) for problem in error.errors(include_url=False))) from None


def _violation(problem: Any) -> Violation:
    path = ""
    for part in problem["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    given = problem["input"]
    shown = f"{len(given)} entries" if isinstance(given, list | dict) else repr(given)[:64]
    allowed = f"{problem['msg'][0].lower()}{problem['msg'][1:]}"
    if problem["type"] == "is_instance_of":
        allowed = f"must be one of {', '.join(_ENUMS[problem['ctx']['class']].__members__)}"
    return Violation(path, f"{allowed}, got {shown}")
