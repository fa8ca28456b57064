"""The standard health check (grpc.health.v1.Health/Check), without depending on its package.

A client needs one string out and one enum number in. On the wire HealthCheckRequest is a StringValue and
HealthCheckResponse an Int32Value: one field, numbered 1, of the same type. Must not know channels.
"""

from __future__ import annotations

from google.protobuf.wrappers_pb2 import Int32Value, StringValue

METHOD = "/grpc.health.v1.Health/Check"


def encode(service: str) -> bytes:
    """The request that asks for one service; an empty name asks for the whole server."""
    return StringValue(value=service).SerializeToString()


def decode(response: bytes) -> int:
    """The serving status's number."""
    return Int32Value.FromString(response).value
