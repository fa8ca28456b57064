from burstgate.policy.v1 import policy_pb2 as _policy_pb2
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
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListVerdictsResponse(_message.Message):
    __slots__ = ("verdicts", "next_page_token")
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    verdicts: _containers.RepeatedCompositeFieldContainer[VerdictView]
    next_page_token: str
    def __init__(self, verdicts: _Optional[_Iterable[_Union[VerdictView, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class VerdictView(_message.Message):
    __slots__ = ("snapshot", "lanes")
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    snapshot: _policy_pb2.PolicySnapshot
    lanes: _containers.RepeatedCompositeFieldContainer[LaneView]
    def __init__(self, snapshot: _Optional[_Union[_policy_pb2.PolicySnapshot, _Mapping]] = ..., lanes: _Optional[_Iterable[_Union[LaneView, _Mapping]]] = ...) -> None: ...

class LaneView(_message.Message):
    __slots__ = ("lane_id", "instance_id", "last_grant", "plain_tokens_per_second", "speculative_tokens_per_second", "grants", "steps", "dropped_steps")
    LANE_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_GRANT_FIELD_NUMBER: _ClassVar[int]
    PLAIN_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    SPECULATIVE_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_STEPS_FIELD_NUMBER: _ClassVar[int]
    lane_id: str
    instance_id: str
    last_grant: _policy_pb2.BurstGrant
    plain_tokens_per_second: float
    speculative_tokens_per_second: float
    grants: int
    steps: int
    dropped_steps: int
    def __init__(self, lane_id: _Optional[str] = ..., instance_id: _Optional[str] = ..., last_grant: _Optional[_Union[_policy_pb2.BurstGrant, _Mapping]] = ..., plain_tokens_per_second: _Optional[float] = ..., speculative_tokens_per_second: _Optional[float] = ..., grants: _Optional[int] = ..., steps: _Optional[int] = ..., dropped_steps: _Optional[int] = ...) -> None: ...
