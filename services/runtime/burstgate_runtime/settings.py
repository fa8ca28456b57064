"""Settings from BURSTGATE_* variables, with every mistake reported at start in one readable error.

A service subclasses `ServiceSettings` and loads it with `load_settings`. A value that cannot be
read, the empty string among them, is an error that names the variable, the value and what is
allowed; a default is never put in place of a value that somebody wrote.
"""

import re
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeVar

import annotated_types
import pydantic
import pydantic_settings
from pydantic_settings import NoDecode

from burstgate_runtime.listen import Listen, SettingsError, parse_listen

__all__ = [
    "PREFIX",
    "ListenAddress",
    "ServiceSettings",
    "SettingsError",
    "load_settings",
    "unknown_variables",
    "variable_name",
    "variable_names",
]

PREFIX = "BURSTGATE_"

ListenAddress = Annotated[Listen, NoDecode, pydantic.BeforeValidator(parse_listen)]
"""A field that is written as `host:port` or `unix:/path`."""


def _tcp_only(listen: Listen) -> Listen:
    if listen.is_unix:
        raise SettingsError("must be host:port; a Unix socket cannot be scraped")
    return listen


class ServiceSettings(pydantic_settings.BaseSettings):
    """What every service can be told; `BURSTGATE_` and the field's name in capitals is its variable."""

    model_config = pydantic_settings.SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="forbid", populate_by_name=True, hide_input_in_errors=False
    )

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level that is written."""
    log_format: Literal["json", "console"] = "json"
    """One JSON object a line, or lines for people."""
    drain_timeout_s: float = pydantic.Field(default=10.0, ge=0, le=3600, allow_inf_nan=False)
    """How long running calls may finish after a stop signal, in seconds."""
    max_concurrent_rpcs: int = pydantic.Field(default=1024, ge=1, le=1_000_000)
    """Calls beyond this many at once are refused with RESOURCE_EXHAUSTED."""
    max_message_bytes: int = pydantic.Field(default=4 * 1024 * 1024, ge=1024, le=1024 * 1024 * 1024)
    """Largest message taken or sent, in bytes."""
    metrics_listen: Annotated[ListenAddress, pydantic.AfterValidator(_tcp_only)] | None = None
    """Where Prometheus reads metrics over HTTP; unset serves none."""

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _refuse_empty(cls, value: object) -> object:
        # An empty variable is a deployment template that was not filled in, not a wish for the default.
        if isinstance(value, str) and not value.strip():
            raise SettingsError("is set but empty; unset it to get the default")
        return value


_Settings = TypeVar("_Settings", bound=ServiceSettings)


def load_settings(cls: type[_Settings], **overrides: Any) -> _Settings:
    """Reads the settings from the environment; overrides (such as flags) win unless they are None."""
    given = {name: value for name, value in overrides.items() if value is not None}
    try:
        return cls(**given)
    except pydantic.ValidationError as error:
        lines = [_explain(cls, problem, given) for problem in error.errors(include_url=False)]
        raise SettingsError("; ".join(dict.fromkeys(lines))) from None


def variable_name(cls: type[ServiceSettings], field: str) -> str:
    """Names the environment variable of a field."""
    alias = cls.model_fields[field].validation_alias
    return alias if isinstance(alias, str) else (PREFIX + field).upper()


def variable_names(cls: type[ServiceSettings]) -> set[str]:
    """Names every environment variable that the settings read."""
    return {variable_name(cls, field) for field in cls.model_fields}


def unknown_variables(known: set[str], environ: Mapping[str, str]) -> list[str]:
    """Lists the BURSTGATE_* variables of an environment that are none of the known ones."""
    return sorted(name for name in environ if name.startswith(PREFIX) and name not in known)


def _explain(cls: type[ServiceSettings], problem: Any, overrides: Mapping[str, object]) -> str:
    location = str(problem["loc"][0]) if problem["loc"] else ""
    # Pydantic reports the name that was used to set the value: the alias or the field.
    field = next(
        (name for name in cls.model_fields if location in (name, variable_name(cls, name), _alias(cls, name))),
        None,
    )
    if field is None:
        return f"{location} is no setting of this service"
    source = f"--{field.replace('_', '-')}" if field in overrides else variable_name(cls, field)
    if problem["type"] == "value_error":
        return f"{source}={_shown(problem['input'])}: {problem['ctx']['error']}"
    return f"{source}={_shown(problem['input'])}: must be {_allowed(cls, field)}"


def _shown(value: object) -> str:
    """The value as it was written, without the credentials of a URL."""
    return re.sub(r"(?<=://)[^/\s]*@", "***@", str(value))


def _alias(cls: type[ServiceSettings], field: str) -> str:
    return str(cls.model_fields[field].validation_alias or field)


def _allowed(cls: type[ServiceSettings], field: str) -> str:
    info = cls.model_fields[field]
    kind = _without_none(info.annotation)
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, typing.get_args(kind)))
    if kind is bool:
        return "on or off"
    if kind in (int, float):
        return ("a whole number" if kind is int else "a number") + _bounds(info.metadata)
    return f"a valid {getattr(kind, '__name__', kind)}"


def _without_none(annotation: object) -> object:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        kinds = [kind for kind in typing.get_args(annotation) if kind is not type(None)]
        return kinds[0] if len(kinds) == 1 else annotation
    return annotation


def _bounds(metadata: Iterable[object]) -> str:
    words = []
    for limit in metadata:
        match limit:
            case annotated_types.Ge(ge=least):
                words.append(f"from {least}")
            case annotated_types.Gt(gt=least):
                words.append(f"above {least}")
            case annotated_types.Le(le=most):
                words.append(f"to {most}")
            case annotated_types.Lt(lt=most):
                words.append(f"below {most}")
            case _:
                pass
    return " " + " ".join(words) if words else ""
