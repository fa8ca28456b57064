import datetime

from burstgate.policy.v1 import policy_pb2 as _policy_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetVerdictRequest(_message.Message):
    __slots__ = ("key_hash",)
    KEY_HASH_FIELD_NUMBER: _ClassVar[int]
    key_hash: str
    def __init__(self, key_hash: _Optional[str] = ...) -> None: ...

class GetVerdictResponse(_message.Message):
    __slots__ = ("verdict",)
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    verdict: VerdictView
    def __init__(self, verdict: _Optional[_Union[VerdictView, _Mapping]] = ...) -> None: ...

class ListVerdictsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "filter")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    filter: VerdictFilter
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., filter: _Optional[_Union[VerdictFilter, _Mapping]] = ...) -> None: ...

class VerdictFilter(_message.Message):
    __slots__ = ("target", "drafter", "hardware", "state", "verdict", "pinned")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    HARDWARE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    target: str
    drafter: str
    hardware: str
    state: _policy_pb2.PolicyState
    verdict: _policy_pb2.Verdict
    pinned: bool
    def __init__(self, target: _Optional[str] = ..., drafter: _Optional[str] = ..., hardware: _Optional[str] = ..., state: _Optional[_Union[_policy_pb2.PolicyState, str]] = ..., verdict: _Optional[_Union[_policy_pb2.Verdict, str]] = ..., pinned: _Optional[bool] = ...) -> None: ...

class ListVerdictsResponse(_message.Message):
    __slots__ = ("verdicts", "next_page_token")
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    verdicts: _containers.RepeatedCompositeFieldContainer[VerdictView]
    next_page_token: str
    def __init__(self, verdicts: _Optional[_Iterable[_Union[VerdictView, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class VerdictView(_message.Message):
    __slots__ = ("snapshot", "lanes", "regret")
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    REGRET_FIELD_NUMBER: _ClassVar[int]
    snapshot: _policy_pb2.PolicySnapshot
    lanes: _containers.RepeatedCompositeFieldContainer[LaneView]
    regret: Regret
    def __init__(self, snapshot: _Optional[_Union[_policy_pb2.PolicySnapshot, _Mapping]] = ..., lanes: _Optional[_Iterable[_Union[LaneView, _Mapping]]] = ..., regret: _Optional[_Union[Regret, _Mapping]] = ...) -> None: ...

class LaneView(_message.Message):
    __slots__ = ("lane_id", "instance_id", "last_grant", "plain_tokens_per_second", "speculative_tokens_per_second", "grants", "steps", "dropped_steps", "regret")
    LANE_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_GRANT_FIELD_NUMBER: _ClassVar[int]
    PLAIN_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    SPECULATIVE_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_STEPS_FIELD_NUMBER: _ClassVar[int]
    REGRET_FIELD_NUMBER: _ClassVar[int]
    lane_id: str
    instance_id: str
    last_grant: _policy_pb2.BurstGrant
    plain_tokens_per_second: float
    speculative_tokens_per_second: float
    grants: int
    steps: int
    dropped_steps: int
    regret: Regret
    def __init__(self, lane_id: _Optional[str] = ..., instance_id: _Optional[str] = ..., last_grant: _Optional[_Union[_policy_pb2.BurstGrant, _Mapping]] = ..., plain_tokens_per_second: _Optional[float] = ..., speculative_tokens_per_second: _Optional[float] = ..., grants: _Optional[int] = ..., steps: _Optional[int] = ..., dropped_steps: _Optional[int] = ..., regret: _Optional[_Union[Regret, _Mapping]] = ...) -> None: ...

class Regret(_message.Message):
    __slots__ = ("actual_ms", "best_ms", "best_draft_width", "lost_ms", "share", "recent_share", "recent_best_draft_width", "holding")
    ACTUAL_MS_FIELD_NUMBER: _ClassVar[int]
    BEST_MS_FIELD_NUMBER: _ClassVar[int]
    BEST_DRAFT_WIDTH_FIELD_NUMBER: _ClassVar[int]
    LOST_MS_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    RECENT_SHARE_FIELD_NUMBER: _ClassVar[int]
    RECENT_BEST_DRAFT_WIDTH_FIELD_NUMBER: _ClassVar[int]
    HOLDING_FIELD_NUMBER: _ClassVar[int]
    actual_ms: float
    best_ms: float
    best_draft_width: int
    lost_ms: float
    share: float
    recent_share: float
    recent_best_draft_width: int
    holding: bool
    def __init__(self, actual_ms: _Optional[float] = ..., best_ms: _Optional[float] = ..., best_draft_width: _Optional[int] = ..., lost_ms: _Optional[float] = ..., share: _Optional[float] = ..., recent_share: _Optional[float] = ..., recent_best_draft_width: _Optional[int] = ..., holding: _Optional[bool] = ...) -> None: ...

class WatchVerdictsRequest(_message.Message):
    __slots__ = ("filter", "resume_token")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    filter: VerdictFilter
    resume_token: str
    def __init__(self, filter: _Optional[_Union[VerdictFilter, _Mapping]] = ..., resume_token: _Optional[str] = ...) -> None: ...

class WatchVerdictsResponse(_message.Message):
    __slots__ = ("verdict", "removed", "resume_token", "restarted")
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    RESTARTED_FIELD_NUMBER: _ClassVar[int]
    verdict: VerdictView
    removed: bool
    resume_token: str
    restarted: bool
    def __init__(self, verdict: _Optional[_Union[VerdictView, _Mapping]] = ..., removed: _Optional[bool] = ..., resume_token: _Optional[str] = ..., restarted: _Optional[bool] = ...) -> None: ...

class PinVerdictRequest(_message.Message):
    __slots__ = ("key_hash", "speculate", "reason", "author", "ttl")
    KEY_HASH_FIELD_NUMBER: _ClassVar[int]
    SPECULATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    key_hash: str
    speculate: bool
    reason: str
    author: str
    ttl: _duration_pb2.Duration
    def __init__(self, key_hash: _Optional[str] = ..., speculate: _Optional[bool] = ..., reason: _Optional[str] = ..., author: _Optional[str] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class PinVerdictResponse(_message.Message):
    __slots__ = ("verdict",)
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    verdict: VerdictView
    def __init__(self, verdict: _Optional[_Union[VerdictView, _Mapping]] = ...) -> None: ...

class UnpinVerdictRequest(_message.Message):
    __slots__ = ("key_hash",)
    KEY_HASH_FIELD_NUMBER: _ClassVar[int]
    key_hash: str
    def __init__(self, key_hash: _Optional[str] = ...) -> None: ...

class UnpinVerdictResponse(_message.Message):
    __slots__ = ("verdict",)
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    verdict: VerdictView
    def __init__(self, verdict: _Optional[_Union[VerdictView, _Mapping]] = ...) -> None: ...

class ResetVerdictRequest(_message.Message):
    __slots__ = ("key_hash",)
    KEY_HASH_FIELD_NUMBER: _ClassVar[int]
    key_hash: str
    def __init__(self, key_hash: _Optional[str] = ...) -> None: ...

class ResetVerdictResponse(_message.Message):
    __slots__ = ("verdict",)
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    verdict: VerdictView
    def __init__(self, verdict: _Optional[_Union[VerdictView, _Mapping]] = ...) -> None: ...

class ExportHintsRequest(_message.Message):
    __slots__ = ("filter",)
    FILTER_FIELD_NUMBER: _ClassVar[int]
    filter: VerdictFilter
    def __init__(self, filter: _Optional[_Union[VerdictFilter, _Mapping]] = ...) -> None: ...

class ExportHintsResponse(_message.Message):
    __slots__ = ("hints",)
    HINTS_FIELD_NUMBER: _ClassVar[int]
    hints: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, hints: _Optional[_Iterable[str]] = ...) -> None: ...

class ImportHintsRequest(_message.Message):
    __slots__ = ("hints", "overwrite")
    HINTS_FIELD_NUMBER: _ClassVar[int]
    OVERWRITE_FIELD_NUMBER: _ClassVar[int]
    hints: _containers.RepeatedScalarFieldContainer[str]
    overwrite: bool
    def __init__(self, hints: _Optional[_Iterable[str]] = ..., overwrite: _Optional[bool] = ...) -> None: ...

class ImportHintsResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[ImportedHint]
    def __init__(self, results: _Optional[_Iterable[_Union[ImportedHint, _Mapping]]] = ...) -> None: ...

class ImportedHint(_message.Message):
    __slots__ = ("key_hash", "stored", "why_not")
    KEY_HASH_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    WHY_NOT_FIELD_NUMBER: _ClassVar[int]
    key_hash: str
    stored: bool
    why_not: str
    def __init__(self, key_hash: _Optional[str] = ..., stored: _Optional[bool] = ..., why_not: _Optional[str] = ...) -> None: ...

class ExplainGrantRequest(_message.Message):
    __slots__ = ("lane_id", "situation")
    LANE_ID_FIELD_NUMBER: _ClassVar[int]
    SITUATION_FIELD_NUMBER: _ClassVar[int]
    lane_id: str
    situation: _policy_pb2.Situation
    def __init__(self, lane_id: _Optional[str] = ..., situation: _Optional[_Union[_policy_pb2.Situation, _Mapping]] = ...) -> None: ...

class ExplainGrantResponse(_message.Message):
    __slots__ = ("grant", "rules")
    GRANT_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    grant: _policy_pb2.BurstGrant
    rules: _containers.RepeatedCompositeFieldContainer[RuleAnswer]
    def __init__(self, grant: _Optional[_Union[_policy_pb2.BurstGrant, _Mapping]] = ..., rules: _Optional[_Iterable[_Union[RuleAnswer, _Mapping]]] = ...) -> None: ...

class RuleAnswer(_message.Message):
    __slots__ = ("rule", "decided", "numbers", "answer")
    class NumbersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    RULE_FIELD_NUMBER: _ClassVar[int]
    DECIDED_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    rule: str
    decided: bool
    numbers: _containers.ScalarMap[str, float]
    answer: str
    def __init__(self, rule: _Optional[str] = ..., decided: _Optional[bool] = ..., numbers: _Optional[_Mapping[str, float]] = ..., answer: _Optional[str] = ...) -> None: ...

class ReplayTraceRequest(_message.Message):
    __slots__ = ("lane", "outcomes", "settings")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    LANE_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    lane: _policy_pb2.OpenLaneRequest
    outcomes: _containers.RepeatedCompositeFieldContainer[_policy_pb2.BurstOutcome]
    settings: _containers.ScalarMap[str, str]
    def __init__(self, lane: _Optional[_Union[_policy_pb2.OpenLaneRequest, _Mapping]] = ..., outcomes: _Optional[_Iterable[_Union[_policy_pb2.BurstOutcome, _Mapping]]] = ..., settings: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ReplayTraceResponse(_message.Message):
    __slots__ = ("steps", "recorded_ms", "replayed_ms", "tokens", "snapshot")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    RECORDED_MS_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_MS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    steps: _containers.RepeatedCompositeFieldContainer[ReplayedStep]
    recorded_ms: float
    replayed_ms: float
    tokens: int
    snapshot: _policy_pb2.PolicySnapshot
    def __init__(self, steps: _Optional[_Iterable[_Union[ReplayedStep, _Mapping]]] = ..., recorded_ms: _Optional[float] = ..., replayed_ms: _Optional[float] = ..., tokens: _Optional[int] = ..., snapshot: _Optional[_Union[_policy_pb2.PolicySnapshot, _Mapping]] = ...) -> None: ...

class ReplayedStep(_message.Message):
    __slots__ = ("recorded_mode", "recorded_draft_width", "mode", "draft_width", "reason")
    RECORDED_MODE_FIELD_NUMBER: _ClassVar[int]
    RECORDED_DRAFT_WIDTH_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    DRAFT_WIDTH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    recorded_mode: _policy_pb2.BurstMode
    recorded_draft_width: int
    mode: _policy_pb2.BurstMode
    draft_width: int
    reason: _policy_pb2.GrantReason
    def __init__(self, recorded_mode: _Optional[_Union[_policy_pb2.BurstMode, str]] = ..., recorded_draft_width: _Optional[int] = ..., mode: _Optional[_Union[_policy_pb2.BurstMode, str]] = ..., draft_width: _Optional[int] = ..., reason: _Optional[_Union[_policy_pb2.GrantReason, str]] = ...) -> None: ...
