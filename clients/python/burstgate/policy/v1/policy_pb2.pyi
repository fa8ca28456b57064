import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BurstMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BURST_MODE_UNSPECIFIED: _ClassVar[BurstMode]
    BURST_MODE_PLAIN: _ClassVar[BurstMode]
    BURST_MODE_SPECULATIVE: _ClassVar[BurstMode]
    BURST_MODE_PROBE_PLAIN: _ClassVar[BurstMode]
    BURST_MODE_PROBE_SPECULATIVE: _ClassVar[BurstMode]
    BURST_MODE_PINNED: _ClassVar[BurstMode]

class GrantReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GRANT_REASON_UNSPECIFIED: _ClassVar[GrantReason]
    GRANT_REASON_FORCED_ON: _ClassVar[GrantReason]
    GRANT_REASON_FORCED_OFF: _ClassVar[GrantReason]
    GRANT_REASON_PROFILING_PLAIN: _ClassVar[GrantReason]
    GRANT_REASON_PROFILING_SPECULATIVE: _ClassVar[GrantReason]
    GRANT_REASON_VERDICT_DECLINED: _ClassVar[GrantReason]
    GRANT_REASON_GATE_SPECULATIVE: _ClassVar[GrantReason]
    GRANT_REASON_GATE_PLAIN: _ClassVar[GrantReason]
    GRANT_REASON_GATE_PROBE_PLAIN: _ClassVar[GrantReason]
    GRANT_REASON_GATE_PROBE_SPECULATIVE: _ClassVar[GrantReason]
    GRANT_REASON_ENTRY_PIN: _ClassVar[GrantReason]
    GRANT_REASON_INELIGIBLE: _ClassVar[GrantReason]
    GRANT_REASON_STATIC_ON: _ClassVar[GrantReason]
    GRANT_REASON_STATIC_OFF: _ClassVar[GrantReason]
    GRANT_REASON_DEPTH_PLAIN: _ClassVar[GrantReason]
    GRANT_REASON_REQUEST_ON: _ClassVar[GrantReason]
    GRANT_REASON_REQUEST_OFF: _ClassVar[GrantReason]
    GRANT_REASON_FALLBACK_LAST_GRANT: _ClassVar[GrantReason]
    GRANT_REASON_FALLBACK_STATIC: _ClassVar[GrantReason]
    GRANT_REASON_NO_DRAFTER: _ClassVar[GrantReason]
    GRANT_REASON_INEXACT: _ClassVar[GrantReason]
    GRANT_REASON_PINNED_ON: _ClassVar[GrantReason]
    GRANT_REASON_PINNED_OFF: _ClassVar[GrantReason]
    GRANT_REASON_RECHALLENGE: _ClassVar[GrantReason]

class PolicyState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    POLICY_STATE_UNSPECIFIED: _ClassVar[PolicyState]
    POLICY_STATE_FORCED: _ClassVar[PolicyState]
    POLICY_STATE_PROFILING: _ClassVar[PolicyState]
    POLICY_STATE_SETTLED: _ClassVar[PolicyState]
    POLICY_STATE_STATIC: _ClassVar[PolicyState]

class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERDICT_UNSPECIFIED: _ClassVar[Verdict]
    VERDICT_ENABLE: _ClassVar[Verdict]
    VERDICT_DECLINE: _ClassVar[Verdict]
BURST_MODE_UNSPECIFIED: BurstMode
BURST_MODE_PLAIN: BurstMode
BURST_MODE_SPECULATIVE: BurstMode
BURST_MODE_PROBE_PLAIN: BurstMode
BURST_MODE_PROBE_SPECULATIVE: BurstMode
BURST_MODE_PINNED: BurstMode
GRANT_REASON_UNSPECIFIED: GrantReason
GRANT_REASON_FORCED_ON: GrantReason
GRANT_REASON_FORCED_OFF: GrantReason
GRANT_REASON_PROFILING_PLAIN: GrantReason
GRANT_REASON_PROFILING_SPECULATIVE: GrantReason
GRANT_REASON_VERDICT_DECLINED: GrantReason
GRANT_REASON_GATE_SPECULATIVE: GrantReason
GRANT_REASON_GATE_PLAIN: GrantReason
GRANT_REASON_GATE_PROBE_PLAIN: GrantReason
GRANT_REASON_GATE_PROBE_SPECULATIVE: GrantReason
GRANT_REASON_ENTRY_PIN: GrantReason
GRANT_REASON_INELIGIBLE: GrantReason
GRANT_REASON_STATIC_ON: GrantReason
GRANT_REASON_STATIC_OFF: GrantReason
GRANT_REASON_DEPTH_PLAIN: GrantReason
GRANT_REASON_REQUEST_ON: GrantReason
GRANT_REASON_REQUEST_OFF: GrantReason
GRANT_REASON_FALLBACK_LAST_GRANT: GrantReason
GRANT_REASON_FALLBACK_STATIC: GrantReason
GRANT_REASON_NO_DRAFTER: GrantReason
GRANT_REASON_INEXACT: GrantReason
GRANT_REASON_PINNED_ON: GrantReason
GRANT_REASON_PINNED_OFF: GrantReason
GRANT_REASON_RECHALLENGE: GrantReason
POLICY_STATE_UNSPECIFIED: PolicyState
POLICY_STATE_FORCED: PolicyState
POLICY_STATE_PROFILING: PolicyState
POLICY_STATE_SETTLED: PolicyState
POLICY_STATE_STATIC: PolicyState
VERDICT_UNSPECIFIED: Verdict
VERDICT_ENABLE: Verdict
VERDICT_DECLINE: Verdict

class PolicyKey(_message.Message):
    __slots__ = ("target", "drafter", "hardware", "draft_width", "target_fingerprint", "drafter_fingerprint", "dtype", "backend", "blas", "mlx_version")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    HARDWARE_FIELD_NUMBER: _ClassVar[int]
    DRAFT_WIDTH_FIELD_NUMBER: _ClassVar[int]
    TARGET_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    BLAS_FIELD_NUMBER: _ClassVar[int]
    MLX_VERSION_FIELD_NUMBER: _ClassVar[int]
    target: str
    drafter: str
    hardware: str
    draft_width: int
    target_fingerprint: str
    drafter_fingerprint: str
    dtype: str
    backend: str
    blas: str
    mlx_version: str
    def __init__(self, target: _Optional[str] = ..., drafter: _Optional[str] = ..., hardware: _Optional[str] = ..., draft_width: _Optional[int] = ..., target_fingerprint: _Optional[str] = ..., drafter_fingerprint: _Optional[str] = ..., dtype: _Optional[str] = ..., backend: _Optional[str] = ..., blas: _Optional[str] = ..., mlx_version: _Optional[str] = ...) -> None: ...

class LaneCapabilities(_message.Message):
    __slots__ = ("batchable", "max_width", "drafter_kind", "apple_gpu_generation")
    BATCHABLE_FIELD_NUMBER: _ClassVar[int]
    MAX_WIDTH_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_KIND_FIELD_NUMBER: _ClassVar[int]
    APPLE_GPU_GENERATION_FIELD_NUMBER: _ClassVar[int]
    batchable: bool
    max_width: int
    drafter_kind: str
    apple_gpu_generation: int
    def __init__(self, batchable: _Optional[bool] = ..., max_width: _Optional[int] = ..., drafter_kind: _Optional[str] = ..., apple_gpu_generation: _Optional[int] = ...) -> None: ...

class CostCell(_message.Message):
    __slots__ = ("width", "draft_width", "depth_tokens", "verify_ms", "draft_ms")
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    DRAFT_WIDTH_FIELD_NUMBER: _ClassVar[int]
    DEPTH_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VERIFY_MS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_MS_FIELD_NUMBER: _ClassVar[int]
    width: int
    draft_width: int
    depth_tokens: int
    verify_ms: float
    draft_ms: float
    def __init__(self, width: _Optional[int] = ..., draft_width: _Optional[int] = ..., depth_tokens: _Optional[int] = ..., verify_ms: _Optional[float] = ..., draft_ms: _Optional[float] = ...) -> None: ...

class OpenLaneRequest(_message.Message):
    __slots__ = ("key", "capabilities", "costs", "instance_id")
    KEY_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    COSTS_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    key: PolicyKey
    capabilities: LaneCapabilities
    costs: _containers.RepeatedCompositeFieldContainer[CostCell]
    instance_id: str
    def __init__(self, key: _Optional[_Union[PolicyKey, _Mapping]] = ..., capabilities: _Optional[_Union[LaneCapabilities, _Mapping]] = ..., costs: _Optional[_Iterable[_Union[CostCell, _Mapping]]] = ..., instance_id: _Optional[str] = ...) -> None: ...

class OpenLaneResponse(_message.Message):
    __slots__ = ("lane_id", "snapshot")
    LANE_ID_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    lane_id: str
    snapshot: PolicySnapshot
    def __init__(self, lane_id: _Optional[str] = ..., snapshot: _Optional[_Union[PolicySnapshot, _Mapping]] = ...) -> None: ...

class PolicySnapshot(_message.Message):
    __slots__ = ("key", "state", "verdict", "speculation_enabled", "acceptance_rate", "samples", "samples_required", "speedup", "static_default", "key_hash", "from_hint", "explanation", "evidence", "version", "expires_at", "rechallenge_at", "pin", "starved_because")
    KEY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_ENABLED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_RATE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_REQUIRED_FIELD_NUMBER: _ClassVar[int]
    SPEEDUP_FIELD_NUMBER: _ClassVar[int]
    STATIC_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    KEY_HASH_FIELD_NUMBER: _ClassVar[int]
    FROM_HINT_FIELD_NUMBER: _ClassVar[int]
    EXPLANATION_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    RECHALLENGE_AT_FIELD_NUMBER: _ClassVar[int]
    PIN_FIELD_NUMBER: _ClassVar[int]
    STARVED_BECAUSE_FIELD_NUMBER: _ClassVar[int]
    key: PolicyKey
    state: PolicyState
    verdict: Verdict
    speculation_enabled: bool
    acceptance_rate: float
    samples: int
    samples_required: int
    speedup: float
    static_default: bool
    key_hash: str
    from_hint: bool
    explanation: str
    evidence: Evidence
    version: int
    expires_at: _timestamp_pb2.Timestamp
    rechallenge_at: _timestamp_pb2.Timestamp
    pin: Pin
    starved_because: str
    def __init__(self, key: _Optional[_Union[PolicyKey, _Mapping]] = ..., state: _Optional[_Union[PolicyState, str]] = ..., verdict: _Optional[_Union[Verdict, str]] = ..., speculation_enabled: _Optional[bool] = ..., acceptance_rate: _Optional[float] = ..., samples: _Optional[int] = ..., samples_required: _Optional[int] = ..., speedup: _Optional[float] = ..., static_default: _Optional[bool] = ..., key_hash: _Optional[str] = ..., from_hint: _Optional[bool] = ..., explanation: _Optional[str] = ..., evidence: _Optional[_Union[Evidence, _Mapping]] = ..., version: _Optional[int] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., rechallenge_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., pin: _Optional[_Union[Pin, _Mapping]] = ..., starved_because: _Optional[str] = ...) -> None: ...

class Evidence(_message.Message):
    __slots__ = ("rounds", "plain_steps", "traffic_kinds", "speedup", "speedup_low", "speedup_high", "confidence", "spread", "first_seen_at", "last_seen_at", "round_ms", "plain_step_ms")
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    PLAIN_STEPS_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_KINDS_FIELD_NUMBER: _ClassVar[int]
    SPEEDUP_FIELD_NUMBER: _ClassVar[int]
    SPEEDUP_LOW_FIELD_NUMBER: _ClassVar[int]
    SPEEDUP_HIGH_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    SPREAD_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEEN_AT_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_AT_FIELD_NUMBER: _ClassVar[int]
    ROUND_MS_FIELD_NUMBER: _ClassVar[int]
    PLAIN_STEP_MS_FIELD_NUMBER: _ClassVar[int]
    rounds: int
    plain_steps: int
    traffic_kinds: int
    speedup: float
    speedup_low: float
    speedup_high: float
    confidence: float
    spread: float
    first_seen_at: _timestamp_pb2.Timestamp
    last_seen_at: _timestamp_pb2.Timestamp
    round_ms: float
    plain_step_ms: float
    def __init__(self, rounds: _Optional[int] = ..., plain_steps: _Optional[int] = ..., traffic_kinds: _Optional[int] = ..., speedup: _Optional[float] = ..., speedup_low: _Optional[float] = ..., speedup_high: _Optional[float] = ..., confidence: _Optional[float] = ..., spread: _Optional[float] = ..., first_seen_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., last_seen_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., round_ms: _Optional[float] = ..., plain_step_ms: _Optional[float] = ...) -> None: ...

class Pin(_message.Message):
    __slots__ = ("speculate", "reason", "author", "pinned_at", "expires_at")
    SPECULATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    PINNED_AT_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    speculate: bool
    reason: str
    author: str
    pinned_at: _timestamp_pb2.Timestamp
    expires_at: _timestamp_pb2.Timestamp
    def __init__(self, speculate: _Optional[bool] = ..., reason: _Optional[str] = ..., author: _Optional[str] = ..., pinned_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Situation(_message.Message):
    __slots__ = ("width", "depth_tokens", "min_emitted_tokens", "eligible", "max_draft_width", "steps_in_flight")
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    DEPTH_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_EMITTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ELIGIBLE_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_WIDTH_FIELD_NUMBER: _ClassVar[int]
    STEPS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    width: int
    depth_tokens: int
    min_emitted_tokens: int
    eligible: bool
    max_draft_width: int
    steps_in_flight: int
    def __init__(self, width: _Optional[int] = ..., depth_tokens: _Optional[int] = ..., min_emitted_tokens: _Optional[int] = ..., eligible: _Optional[bool] = ..., max_draft_width: _Optional[int] = ..., steps_in_flight: _Optional[int] = ...) -> None: ...

class StepRecord(_message.Message):
    __slots__ = ("mode", "draft_width", "width", "depth_tokens", "emitted", "proposed", "accepted_by_position", "draft_ms", "verify_ms", "overhead_ms", "wall_ms", "excluded")
    MODE_FIELD_NUMBER: _ClassVar[int]
    DRAFT_WIDTH_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    DEPTH_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EMITTED_FIELD_NUMBER: _ClassVar[int]
    PROPOSED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_BY_POSITION_FIELD_NUMBER: _ClassVar[int]
    DRAFT_MS_FIELD_NUMBER: _ClassVar[int]
    VERIFY_MS_FIELD_NUMBER: _ClassVar[int]
    OVERHEAD_MS_FIELD_NUMBER: _ClassVar[int]
    WALL_MS_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_FIELD_NUMBER: _ClassVar[int]
    mode: BurstMode
    draft_width: int
    width: int
    depth_tokens: int
    emitted: int
    proposed: int
    accepted_by_position: _containers.RepeatedScalarFieldContainer[int]
    draft_ms: float
    verify_ms: float
    overhead_ms: float
    wall_ms: float
    excluded: bool
    def __init__(self, mode: _Optional[_Union[BurstMode, str]] = ..., draft_width: _Optional[int] = ..., width: _Optional[int] = ..., depth_tokens: _Optional[int] = ..., emitted: _Optional[int] = ..., proposed: _Optional[int] = ..., accepted_by_position: _Optional[_Iterable[int]] = ..., draft_ms: _Optional[float] = ..., verify_ms: _Optional[float] = ..., overhead_ms: _Optional[float] = ..., wall_ms: _Optional[float] = ..., excluded: _Optional[bool] = ...) -> None: ...

class BurstOutcome(_message.Message):
    __slots__ = ("grant_id", "sequence", "steps", "dropped_steps")
    GRANT_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_STEPS_FIELD_NUMBER: _ClassVar[int]
    grant_id: str
    sequence: int
    steps: _containers.RepeatedCompositeFieldContainer[StepRecord]
    dropped_steps: int
    def __init__(self, grant_id: _Optional[str] = ..., sequence: _Optional[int] = ..., steps: _Optional[_Iterable[_Union[StepRecord, _Mapping]]] = ..., dropped_steps: _Optional[int] = ...) -> None: ...

class DecideBurstRequest(_message.Message):
    __slots__ = ("lane_id", "situation", "outcomes")
    LANE_ID_FIELD_NUMBER: _ClassVar[int]
    SITUATION_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    lane_id: str
    situation: Situation
    outcomes: _containers.RepeatedCompositeFieldContainer[BurstOutcome]
    def __init__(self, lane_id: _Optional[str] = ..., situation: _Optional[_Union[Situation, _Mapping]] = ..., outcomes: _Optional[_Iterable[_Union[BurstOutcome, _Mapping]]] = ...) -> None: ...

class DecideBurstResponse(_message.Message):
    __slots__ = ("grant",)
    GRANT_FIELD_NUMBER: _ClassVar[int]
    grant: BurstGrant
    def __init__(self, grant: _Optional[_Union[BurstGrant, _Mapping]] = ...) -> None: ...

class BurstGrant(_message.Message):
    __slots__ = ("grant_id", "mode", "draft_width", "max_steps", "reason", "explanation", "fresh_ms")
    GRANT_ID_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    DRAFT_WIDTH_FIELD_NUMBER: _ClassVar[int]
    MAX_STEPS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EXPLANATION_FIELD_NUMBER: _ClassVar[int]
    FRESH_MS_FIELD_NUMBER: _ClassVar[int]
    grant_id: str
    mode: BurstMode
    draft_width: int
    max_steps: int
    reason: GrantReason
    explanation: str
    fresh_ms: int
    def __init__(self, grant_id: _Optional[str] = ..., mode: _Optional[_Union[BurstMode, str]] = ..., draft_width: _Optional[int] = ..., max_steps: _Optional[int] = ..., reason: _Optional[_Union[GrantReason, str]] = ..., explanation: _Optional[str] = ..., fresh_ms: _Optional[int] = ...) -> None: ...

class ReportBurstRequest(_message.Message):
    __slots__ = ("lane_id", "outcomes")
    LANE_ID_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    lane_id: str
    outcomes: _containers.RepeatedCompositeFieldContainer[BurstOutcome]
    def __init__(self, lane_id: _Optional[str] = ..., outcomes: _Optional[_Iterable[_Union[BurstOutcome, _Mapping]]] = ...) -> None: ...

class ReportBurstResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StreamBurstsRequest(_message.Message):
    __slots__ = ("lane_id", "situation", "outcomes", "sequence")
    LANE_ID_FIELD_NUMBER: _ClassVar[int]
    SITUATION_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    lane_id: str
    situation: Situation
    outcomes: _containers.RepeatedCompositeFieldContainer[BurstOutcome]
    sequence: int
    def __init__(self, lane_id: _Optional[str] = ..., situation: _Optional[_Union[Situation, _Mapping]] = ..., outcomes: _Optional[_Iterable[_Union[BurstOutcome, _Mapping]]] = ..., sequence: _Optional[int] = ...) -> None: ...

class StreamBurstsResponse(_message.Message):
    __slots__ = ("sequence", "grant", "unknown_lane")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_LANE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    grant: BurstGrant
    unknown_lane: bool
    def __init__(self, sequence: _Optional[int] = ..., grant: _Optional[_Union[BurstGrant, _Mapping]] = ..., unknown_lane: _Optional[bool] = ...) -> None: ...
