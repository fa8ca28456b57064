"""What the fields of an admin request may hold. The same rules of the house as `validation`, off the hot path."""

from collections.abc import Callable

from burstgate.policy.v1 import admin_pb2
from burstgate_policy.config import PolicySettings
from burstgate_policy.core.types import State, Verdict
from burstgate_policy.validation import (
    LIMITS,
    check_count,
    check_open_lane,
    check_range,
    check_situation,
    check_string,
    full,
    missing,
    refuse,
)
from burstgate_runtime.faults import Fault, Violation, invalid
from burstgate_runtime.settings import SettingsError, load_settings

# What a replay may be asked to change: whatever the decision core is made of.
REPLAY_SETTINGS = (
    "mtp_force",
    "mtp_adaptive",
    "gate_reprobe_steps",
    "gate_refresh_steps",
    "gate_regret_ceiling",
    "gate_objective",
    "entry_pin_tokens",
)


def check_key_hash(key_hash: str) -> None:
    """Refuses a key hash that names nothing."""
    found: list[Violation] = []
    check_string("key_hash", key_hash, found, required=True)
    refuse(found)


def check_list_verdicts(request: admin_pb2.ListVerdictsRequest) -> None:
    """Refuses a page that cannot be made."""
    found: list[Violation] = []
    check_range("page_size", request.page_size, 0, LIMITS.page_size, found)
    check_string("page_token", request.page_token, found)
    _check_filter(request.filter, found)
    refuse(found)


def check_watch(request: admin_pb2.WatchVerdictsRequest) -> None:
    """Refuses a watch that cannot be held."""
    found: list[Violation] = []
    check_string("resume_token", request.resume_token, found)
    _check_filter(request.filter, found)
    refuse(found)


def bad_resume_token() -> Fault:
    """The answer to a resume token that no server gave."""
    return invalid(Violation("resume_token", "must be a resume_token of this RPC's answers, or empty"))


def check_pin(request: admin_pb2.PinVerdictRequest) -> None:
    """Refuses a pin that does not say why, by whom, or for how long."""
    found: list[Violation] = []
    check_string("key_hash", request.key_hash, found, required=True)
    _check_words("reason", request.reason, LIMITS.reason_characters, found)
    _check_words("author", request.author, LIMITS.author_characters, found)
    if request.HasField("ttl") and not 1 <= request.ttl.seconds + request.ttl.nanos / 1e9 <= LIMITS.pin_ttl_s:
        found.append(Violation("ttl", f"must be from 1 to {LIMITS.pin_ttl_s} seconds; unset it to pin until unpinned"))
    refuse(found)


def check_export(request: admin_pb2.ExportHintsRequest) -> None:
    """Refuses a filter that selects nothing by mistake."""
    found: list[Violation] = []
    _check_filter(request.filter, found)
    refuse(found)


def check_import(request: admin_pb2.ImportHintsRequest) -> None:
    """Refuses more than can be taken at once; what is in the documents is answered one by one."""
    found: list[Violation] = []
    check_count("hints", len(request.hints), LIMITS.hints, found)
    for i, hint in enumerate(request.hints):
        if full(found):
            break
        if len(hint) * 4 > LIMITS.hint_bytes and len(hint.encode()) > LIMITS.hint_bytes:
            found.append(Violation(f"hints[{i}]", f"must have at most {LIMITS.hint_bytes} bytes"))
    refuse(found)


def check_explain(request: admin_pb2.ExplainGrantRequest) -> None:
    """Refuses a question that cannot be answered."""
    found: list[Violation] = []
    check_string("lane_id", request.lane_id, found, required=True)
    if request.HasField("situation"):
        check_situation(request.situation, found)
    refuse(found)


def check_replay(request: admin_pb2.ReplayTraceRequest) -> None:
    """Refuses a trace that cannot be replayed, but for its outcomes, which `steps` checks as it reads."""
    found: list[Violation] = []
    if request.HasField("lane"):
        _under("lane", lambda: check_open_lane(request.lane), found)
    else:
        found.append(missing("lane"))
    count = sum(len(outcome.steps) for outcome in request.outcomes)
    if count > LIMITS.replay_steps:
        found.append(Violation("outcomes", f"must have at most {LIMITS.replay_steps} steps together, have {count}"))
    refuse(found)


def replay_settings(request: admin_pb2.ReplayTraceRequest, settings: PolicySettings) -> PolicySettings:
    """The service's settings with those of a replay, held to the limits of the variables they are named after."""
    found: list[Violation] = []
    check_count("settings", len(request.settings), LIMITS.replay_settings, found)
    changed: dict[str, object] = {}
    for name, value in sorted(request.settings.items()):
        if full(found):
            break
        field = name.lower()
        path = f'settings["{name}"]' if len(name) <= LIMITS.string_bytes else "settings"
        if name != name.upper() or field not in REPLAY_SETTINGS:
            allowed = ", ".join(one.upper() for one in REPLAY_SETTINGS)
            found.append(Violation(path, f"is no setting of the decision core; those are {allowed}"))
            continue
        try:
            changed[field] = getattr(load_settings(PolicySettings, **{field: value}), field)
        except SettingsError as error:
            found.append(Violation(path, str(error).partition(": ")[2]))
    refuse(found)
    return settings.model_copy(update=changed)


def _check_filter(wanted: admin_pb2.VerdictFilter, found: list[Violation]) -> None:
    for name, value in (("target", wanted.target), ("drafter", wanted.drafter), ("hardware", wanted.hardware)):
        check_string(f"filter.{name}", value, found)
    check_range("filter.state", wanted.state, 0, max(State), found)
    check_range("filter.verdict", wanted.verdict, 0, max(Verdict), found)


def _check_words(field: str, words: str, most: int, found: list[Violation]) -> None:
    if not words.strip():
        found.append(Violation(field, "must not be empty"))
    elif len(words) > most:
        found.append(Violation(field, f"must have at most {most} characters, has {len(words)}"))


def _under(path: str, check: Callable[[], None], found: list[Violation]) -> None:
    """Takes over what a check of a part finds, under the part's path."""
    try:
        check()
    except Fault as fault:
        found += [Violation(f"{path}.{one.field}", one.description) for one in fault.violations]
