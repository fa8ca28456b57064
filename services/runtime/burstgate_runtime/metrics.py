"""Counters of calls, under the names that gRPC dashboards expect, and the endpoint that serves them.

Only methods that the server offers become labels, so that a caller cannot grow the set.
"""

import dataclasses
from collections.abc import Callable

import prometheus_client

from burstgate_runtime.listen import Listen

# A decision takes a fraction of a millisecond, a generation minutes.
_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0)
# grpc_type is "unary", "server_stream", "client_stream" or "bidi_stream".
_LABELS = ("grpc_type", "grpc_service", "grpc_method")

_started = prometheus_client.Counter("grpc_server_started", "Calls begun.", _LABELS)
_handled = prometheus_client.Counter("grpc_server_handled", "Calls ended.", (*_LABELS, "grpc_code"))
_received = prometheus_client.Counter("grpc_server_msg_received", "Messages received.", _LABELS)
_sent = prometheus_client.Counter("grpc_server_msg_sent", "Messages sent.", _LABELS)
_seconds = prometheus_client.Histogram(
    "grpc_server_handling_seconds", "Time from the start of a call to its end.", _LABELS, buckets=_BUCKETS_S
)


@dataclasses.dataclass(frozen=True, slots=True)
class MethodMetrics:
    """The metrics of one method, looked up once."""

    started: prometheus_client.Counter
    received: prometheus_client.Counter
    sent: prometheus_client.Counter
    seconds: prometheus_client.Histogram
    handled: Callable[[str], prometheus_client.Counter]
    """By status code, such as "OK"."""

    @classmethod
    def of(cls, grpc_type: str, service: str, method: str) -> "MethodMetrics":
        """Finds the metrics of a method."""
        labels = (grpc_type, service, method)
        return cls(
            started=_started.labels(*labels),
            received=_received.labels(*labels),
            sent=_sent.labels(*labels),
            seconds=_seconds.labels(*labels),
            handled=lambda code: _handled.labels(*labels, code),
        )


def serve_metrics(listen: Listen) -> Callable[[], None]:
    """Serves the process's metrics over HTTP until the returned function is called; raises OSError."""
    host, port = listen.host_port
    server, thread = prometheus_client.start_http_server(port, host)

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop
