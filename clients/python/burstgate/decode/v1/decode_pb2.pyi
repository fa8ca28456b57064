import datetime

from burstgate.policy.v1 import policy_pb2 as _policy_pb2
from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SpeculationMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SPECULATION_MODE_UNSPECIFIED: _ClassVar[SpeculationMode]
    SPECULATION_MODE_AUTO: _ClassVar[SpeculationMode]
    SPECULATION_MODE_ON: _ClassVar[SpeculationMode]
    SPECULATION_MODE_OFF: _ClassVar[SpeculationMode]

class Priority(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRIORITY_UNSPECIFIED: _ClassVar[Priority]
    PRIORITY_LOW: _ClassVar[Priority]
    PRIORITY_NORMAL: _ClassVar[Priority]
    PRIORITY_HIGH: _ClassVar[Priority]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_EOS: _ClassVar[FinishReason]
    FINISH_REASON_STOP_TOKEN: _ClassVar[FinishReason]
    FINISH_REASON_STOP_STRING: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
SPECULATION_MODE_UNSPECIFIED: SpeculationMode
SPECULATION_MODE_AUTO: SpeculationMode
SPECULATION_MODE_ON: SpeculationMode
SPECULATION_MODE_OFF: SpeculationMode
PRIORITY_UNSPECIFIED: Priority
PRIORITY_LOW: Priority
PRIORITY_NORMAL: Priority
PRIORITY_HIGH: Priority
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_EOS: FinishReason
FINISH_REASON_STOP_TOKEN: FinishReason
FINISH_REASON_STOP_STRING: FinishReason
FINISH_REASON_LENGTH: FinishReason

class ChatMessage(_message.Message):
    __slots__ = ("role", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class ChatPrompt(_message.Message):
    __slots__ = ("messages", "system", "chat_template_kwargs")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_KWARGS_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    system: str
    chat_template_kwargs: _struct_pb2.Struct
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ..., system: _Optional[str] = ..., chat_template_kwargs: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class TokenPrompt(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class SamplingOptions(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "seed")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    seed: int
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., seed: _Optional[int] = ...) -> None: ...

class StopOptions(_message.Message):
    __slots__ = ("strings", "token_ids", "ignore_eos")
    STRINGS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    strings: _containers.RepeatedScalarFieldContainer[str]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    def __init__(self, strings: _Optional[_Iterable[str]] = ..., token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: _Optional[bool] = ...) -> None: ...

class SpeculationOptions(_message.Message):
    __slots__ = ("mode", "max_draft_width")
    MODE_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_WIDTH_FIELD_NUMBER: _ClassVar[int]
    mode: SpeculationMode
    max_draft_width: int
    def __init__(self, mode: _Optional[_Union[SpeculationMode, str]] = ..., max_draft_width: _Optional[int] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("model", "chat", "text", "tokens", "sampling", "stop", "speculation", "max_tokens", "logprobs", "n", "priority", "group_deltas")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    GROUP_DELTAS_FIELD_NUMBER: _ClassVar[int]
    model: str
    chat: ChatPrompt
    text: str
    tokens: TokenPrompt
    sampling: SamplingOptions
    stop: StopOptions
    speculation: SpeculationOptions
    max_tokens: int
    logprobs: int
    n: int
    priority: Priority
    group_deltas: bool
    def __init__(self, model: _Optional[str] = ..., chat: _Optional[_Union[ChatPrompt, _Mapping]] = ..., text: _Optional[str] = ..., tokens: _Optional[_Union[TokenPrompt, _Mapping]] = ..., sampling: _Optional[_Union[SamplingOptions, _Mapping]] = ..., stop: _Optional[_Union[StopOptions, _Mapping]] = ..., speculation: _Optional[_Union[SpeculationOptions, _Mapping]] = ..., max_tokens: _Optional[int] = ..., logprobs: _Optional[int] = ..., n: _Optional[int] = ..., priority: _Optional[_Union[Priority, str]] = ..., group_deltas: _Optional[bool] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("delta", "completion", "deltas")
    DELTA_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_FIELD_NUMBER: _ClassVar[int]
    DELTAS_FIELD_NUMBER: _ClassVar[int]
    delta: GenerateDelta
    completion: GenerateCompletion
    deltas: GenerateDeltas
    def __init__(self, delta: _Optional[_Union[GenerateDelta, _Mapping]] = ..., completion: _Optional[_Union[GenerateCompletion, _Mapping]] = ..., deltas: _Optional[_Union[GenerateDeltas, _Mapping]] = ...) -> None: ...

class GenerateDeltas(_message.Message):
    __slots__ = ("deltas",)
    DELTAS_FIELD_NUMBER: _ClassVar[int]
    deltas: _containers.RepeatedCompositeFieldContainer[GenerateDelta]
    def __init__(self, deltas: _Optional[_Iterable[_Union[GenerateDelta, _Mapping]]] = ...) -> None: ...

class GenerateDelta(_message.Message):
    __slots__ = ("index", "text", "token_ids", "drafted", "round", "mode", "draft_width", "reason", "explanation", "logprobs")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    DRAFT_WIDTH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EXPLANATION_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    index: int
    text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    drafted: _containers.RepeatedScalarFieldContainer[bool]
    round: int
    mode: _policy_pb2.BurstMode
    draft_width: int
    reason: _policy_pb2.GrantReason
    explanation: str
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    def __init__(self, index: _Optional[int] = ..., text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., drafted: _Optional[_Iterable[bool]] = ..., round: _Optional[int] = ..., mode: _Optional[_Union[_policy_pb2.BurstMode, str]] = ..., draft_width: _Optional[int] = ..., reason: _Optional[_Union[_policy_pb2.GrantReason, str]] = ..., explanation: _Optional[str] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ("logprob", "top")
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    logprob: float
    top: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    def __init__(self, logprob: _Optional[float] = ..., top: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("token_id", "logprob")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    logprob: float
    def __init__(self, token_id: _Optional[int] = ..., logprob: _Optional[float] = ...) -> None: ...

class GenerateCompletion(_message.Message):
    __slots__ = ("index", "finish_reason", "stop_string", "stop_token_id", "usage", "timings", "speculation", "seed")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_STRING_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    index: int
    finish_reason: FinishReason
    stop_string: str
    stop_token_id: int
    usage: Usage
    timings: Timings
    speculation: SpeculationStats
    seed: int
    def __init__(self, index: _Optional[int] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., stop_string: _Optional[str] = ..., stop_token_id: _Optional[int] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., speculation: _Optional[_Union[SpeculationStats, _Mapping]] = ..., seed: _Optional[int] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens", "cached_prompt_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    cached_prompt_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., cached_prompt_tokens: _Optional[int] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("queue_ms", "prefill_ms", "decode_ms", "time_to_first_token_ms", "total_ms", "tokens_per_second")
    QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_MS_FIELD_NUMBER: _ClassVar[int]
    DECODE_MS_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_TOKEN_MS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_MS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    queue_ms: float
    prefill_ms: float
    decode_ms: float
    time_to_first_token_ms: float
    total_ms: float
    tokens_per_second: float
    def __init__(self, queue_ms: _Optional[float] = ..., prefill_ms: _Optional[float] = ..., decode_ms: _Optional[float] = ..., time_to_first_token_ms: _Optional[float] = ..., total_ms: _Optional[float] = ..., tokens_per_second: _Optional[float] = ...) -> None: ...

class BurstCount(_message.Message):
    __slots__ = ("mode", "reason", "bursts")
    MODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BURSTS_FIELD_NUMBER: _ClassVar[int]
    mode: _policy_pb2.BurstMode
    reason: _policy_pb2.GrantReason
    bursts: int
    def __init__(self, mode: _Optional[_Union[_policy_pb2.BurstMode, str]] = ..., reason: _Optional[_Union[_policy_pb2.GrantReason, str]] = ..., bursts: _Optional[int] = ...) -> None: ...

class DraftWidthCount(_message.Message):
    __slots__ = ("draft_width", "rounds")
    DRAFT_WIDTH_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    draft_width: int
    rounds: int
    def __init__(self, draft_width: _Optional[int] = ..., rounds: _Optional[int] = ...) -> None: ...

class SpeculationStats(_message.Message):
    __slots__ = ("rounds", "plain_steps", "proposed", "accepted", "accepted_by_position", "mean_accepted_length", "draft_widths", "bursts", "explanation", "redecided", "diverged", "divergences")
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    PLAIN_STEPS_FIELD_NUMBER: _ClassVar[int]
    PROPOSED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_BY_POSITION_FIELD_NUMBER: _ClassVar[int]
    MEAN_ACCEPTED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    DRAFT_WIDTHS_FIELD_NUMBER: _ClassVar[int]
    BURSTS_FIELD_NUMBER: _ClassVar[int]
    EXPLANATION_FIELD_NUMBER: _ClassVar[int]
    REDECIDED_FIELD_NUMBER: _ClassVar[int]
    DIVERGED_FIELD_NUMBER: _ClassVar[int]
    DIVERGENCES_FIELD_NUMBER: _ClassVar[int]
    rounds: int
    plain_steps: int
    proposed: int
    accepted: int
    accepted_by_position: _containers.RepeatedScalarFieldContainer[int]
    mean_accepted_length: float
    draft_widths: _containers.RepeatedCompositeFieldContainer[DraftWidthCount]
    bursts: _containers.RepeatedCompositeFieldContainer[BurstCount]
    explanation: str
    redecided: int
    diverged: int
    divergences: _containers.RepeatedCompositeFieldContainer[Divergence]
    def __init__(self, rounds: _Optional[int] = ..., plain_steps: _Optional[int] = ..., proposed: _Optional[int] = ..., accepted: _Optional[int] = ..., accepted_by_position: _Optional[_Iterable[int]] = ..., mean_accepted_length: _Optional[float] = ..., draft_widths: _Optional[_Iterable[_Union[DraftWidthCount, _Mapping]]] = ..., bursts: _Optional[_Iterable[_Union[BurstCount, _Mapping]]] = ..., explanation: _Optional[str] = ..., redecided: _Optional[int] = ..., diverged: _Optional[int] = ..., divergences: _Optional[_Iterable[_Union[Divergence, _Mapping]]] = ...) -> None: ...

class Divergence(_message.Message):
    __slots__ = ("position", "shared_token_id", "token_id", "margin")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    SHARED_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    MARGIN_FIELD_NUMBER: _ClassVar[int]
    position: int
    shared_token_id: int
    token_id: int
    margin: float
    def __init__(self, position: _Optional[int] = ..., shared_token_id: _Optional[int] = ..., token_id: _Optional[int] = ..., margin: _Optional[float] = ...) -> None: ...

class CountTokensRequest(_message.Message):
    __slots__ = ("model", "chat", "text", "tokens", "return_ids")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    RETURN_IDS_FIELD_NUMBER: _ClassVar[int]
    model: str
    chat: ChatPrompt
    text: str
    tokens: TokenPrompt
    return_ids: bool
    def __init__(self, model: _Optional[str] = ..., chat: _Optional[_Union[ChatPrompt, _Mapping]] = ..., text: _Optional[str] = ..., tokens: _Optional[_Union[TokenPrompt, _Mapping]] = ..., return_ids: _Optional[bool] = ...) -> None: ...

class CountTokensResponse(_message.Message):
    __slots__ = ("prompt_tokens", "ids")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, prompt_tokens: _Optional[int] = ..., ids: _Optional[_Iterable[int]] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("target", "drafter", "hardware", "backend", "blas", "mlx_version", "exactness", "costs")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    HARDWARE_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    BLAS_FIELD_NUMBER: _ClassVar[int]
    MLX_VERSION_FIELD_NUMBER: _ClassVar[int]
    EXACTNESS_FIELD_NUMBER: _ClassVar[int]
    COSTS_FIELD_NUMBER: _ClassVar[int]
    target: ModelInfo
    drafter: DrafterInfo
    hardware: str
    backend: str
    blas: str
    mlx_version: str
    exactness: ExactnessReport
    costs: _containers.RepeatedCompositeFieldContainer[_policy_pb2.CostCell]
    def __init__(self, target: _Optional[_Union[ModelInfo, _Mapping]] = ..., drafter: _Optional[_Union[DrafterInfo, _Mapping]] = ..., hardware: _Optional[str] = ..., backend: _Optional[str] = ..., blas: _Optional[str] = ..., mlx_version: _Optional[str] = ..., exactness: _Optional[_Union[ExactnessReport, _Mapping]] = ..., costs: _Optional[_Iterable[_Union[_policy_pb2.CostCell, _Mapping]]] = ...) -> None: ...

class ModelInfo(_message.Message):
    __slots__ = ("name", "fingerprint", "model_type", "dtype", "vocab_size", "context_length", "eos_token_ids", "has_chat_template")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    MODEL_TYPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    HAS_CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    name: str
    fingerprint: str
    model_type: str
    dtype: str
    vocab_size: int
    context_length: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    has_chat_template: bool
    def __init__(self, name: _Optional[str] = ..., fingerprint: _Optional[str] = ..., model_type: _Optional[str] = ..., dtype: _Optional[str] = ..., vocab_size: _Optional[int] = ..., context_length: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., has_chat_template: _Optional[bool] = ...) -> None: ...

class DrafterInfo(_message.Message):
    __slots__ = ("name", "fingerprint", "kind", "max_draft_width")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_WIDTH_FIELD_NUMBER: _ClassVar[int]
    name: str
    fingerprint: str
    kind: str
    max_draft_width: int
    def __init__(self, name: _Optional[str] = ..., fingerprint: _Optional[str] = ..., kind: _Optional[str] = ..., max_draft_width: _Optional[int] = ...) -> None: ...

class ExactnessReport(_message.Message):
    __slots__ = ("bit_equal", "positions", "max_logit_difference", "guard_margin", "explanation")
    BIT_EQUAL_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_LOGIT_DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    GUARD_MARGIN_FIELD_NUMBER: _ClassVar[int]
    EXPLANATION_FIELD_NUMBER: _ClassVar[int]
    bit_equal: bool
    positions: int
    max_logit_difference: float
    guard_margin: float
    explanation: str
    def __init__(self, bit_equal: _Optional[bool] = ..., positions: _Optional[int] = ..., max_logit_difference: _Optional[float] = ..., guard_margin: _Optional[float] = ..., explanation: _Optional[str] = ...) -> None: ...

class GetServerInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetServerInfoResponse(_message.Message):
    __slots__ = ("version", "started_at", "active_rows", "queued_rows", "max_active_rows", "max_queued_rows", "max_prompt_tokens", "default_max_tokens", "policy", "prefix_cache_bytes", "max_prefix_cache_bytes", "tenant_max_active_rows", "tenant_max_queued_rows", "cache_reserved_bytes", "cache_limit_bytes")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_ROWS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_ROWS_FIELD_NUMBER: _ClassVar[int]
    MAX_ACTIVE_ROWS_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUED_ROWS_FIELD_NUMBER: _ClassVar[int]
    MAX_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    PREFIX_CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_PREFIX_CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TENANT_MAX_ACTIVE_ROWS_FIELD_NUMBER: _ClassVar[int]
    TENANT_MAX_QUEUED_ROWS_FIELD_NUMBER: _ClassVar[int]
    CACHE_RESERVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    CACHE_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    version: str
    started_at: _timestamp_pb2.Timestamp
    active_rows: int
    queued_rows: int
    max_active_rows: int
    max_queued_rows: int
    max_prompt_tokens: int
    default_max_tokens: int
    policy: PolicyLink
    prefix_cache_bytes: int
    max_prefix_cache_bytes: int
    tenant_max_active_rows: int
    tenant_max_queued_rows: int
    cache_reserved_bytes: int
    cache_limit_bytes: int
    def __init__(self, version: _Optional[str] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., active_rows: _Optional[int] = ..., queued_rows: _Optional[int] = ..., max_active_rows: _Optional[int] = ..., max_queued_rows: _Optional[int] = ..., max_prompt_tokens: _Optional[int] = ..., default_max_tokens: _Optional[int] = ..., policy: _Optional[_Union[PolicyLink, _Mapping]] = ..., prefix_cache_bytes: _Optional[int] = ..., max_prefix_cache_bytes: _Optional[int] = ..., tenant_max_active_rows: _Optional[int] = ..., tenant_max_queued_rows: _Optional[int] = ..., cache_reserved_bytes: _Optional[int] = ..., cache_limit_bytes: _Optional[int] = ...) -> None: ...

class PolicyLink(_message.Message):
    __slots__ = ("address", "connected", "grants", "fallbacks", "dropped_steps")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    FALLBACKS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_STEPS_FIELD_NUMBER: _ClassVar[int]
    address: str
    connected: bool
    grants: int
    fallbacks: int
    dropped_steps: int
    def __init__(self, address: _Optional[str] = ..., connected: _Optional[bool] = ..., grants: _Optional[int] = ..., fallbacks: _Optional[int] = ..., dropped_steps: _Optional[int] = ...) -> None: ...
