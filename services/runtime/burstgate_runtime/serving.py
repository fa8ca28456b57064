"""The life of one gRPC server: bind, serve, say how healthy it is, drain, stop.

Start order: the port is bound (and refused if another process has it), health says NOT_SERVING until
the service says otherwise. Stop order: health NOT_SERVING, no new calls, running calls get
`drain_timeout_s`, then what the service wants to do at its end. A second stop signal skips the rest.
It knows no service: what is served is registered by the caller.
"""

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from burstgate_runtime.interceptors import CallInterceptor
from burstgate_runtime.listen import Listen, refuse_if_taken
from burstgate_runtime.metrics import serve_metrics
from burstgate_runtime.settings import ServiceSettings

# Lets the last answers of a drained server leave before connections are closed.
_FLUSH_S = 0.1
# Lets cancelled handlers give back what they hold.
_UNWIND_S = 1.0
# Longer than any drain: the core must not end calls by itself, because doing it twice crashes the process.
_NO_LIMIT_S = 1e6


class ServeError(Exception):
    """The server cannot start; the text names the address and the cause."""


class GrpcService:
    """Owns one grpc.aio server; make, start and stop it on one event loop."""

    def __init__(
        self,
        *,
        settings: ServiceSettings,
        listen: Listen,
        register: Callable[[grpc.aio.Server], None],
        service_names: Sequence[str],
        name: str,
        version: str,
    ) -> None:
        self._settings = settings
        self._listen = listen
        self._service_names = tuple(service_names)
        self._log = structlog.get_logger().bind(service=name, version=version)
        self._health = health.aio.HealthServicer()
        self._interceptor = CallInterceptor(frozenset(service_names))
        self._server = grpc.aio.server(
            interceptors=(self._interceptor,),
            options=_options(settings),
            maximum_concurrent_rpcs=settings.max_concurrent_rpcs,
        )
        register(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (*self._service_names, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server
        )
        self._bound_address = ""
        self._stop_metrics: Callable[[], None] | None = None
        self._cutting: asyncio.Task[None] | None = None

    @property
    def bound_address(self) -> str:
        """The address that is served, with the real port if 0 was asked; empty before start."""
        return self._bound_address

    async def start(self) -> None:
        """Binds and accepts calls, with health NOT_SERVING; raises ServeError."""
        for name in ("", *self._service_names):
            await self._health.set(name, health_pb2.HealthCheckResponse.NOT_SERVING)
        self._bind()
        self._serve_metrics()
        await self._server.start()

    async def set_serving(self, service_name: str, serving: bool) -> None:
        """Sets the health of one service; "" sets the server's and every service's."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", *self._service_names) if service_name == "" else (service_name,):
            await self._health.set(name, status)
        if serving and service_name == "":
            self._log.info("serving", address=self._bound_address)

    async def run_until_stopped(
        self, stop: asyncio.Event, on_drain: Callable[[], Awaitable[None]] | None = None
    ) -> bool:
        """Serves until `stop` is set, by the caller or by SIGTERM or SIGINT, then drains.

        Returns whether the drain was completed: False if a second signal cut it short.
        """
        hurry = asyncio.Event()
        async with _signals(lambda: hurry.set() if stop.is_set() else stop.set()):
            await stop.wait()
            hurried = asyncio.create_task(hurry.wait())
            drained = asyncio.create_task(self._drain(on_drain))
            await asyncio.wait({hurried, drained}, return_when=asyncio.FIRST_COMPLETED)
            complete = drained.done()
            for task in (hurried, drained):
                if not task.done():
                    task.cancel()
            results = await asyncio.gather(drained, hurried, return_exceptions=True)
            await self._cut_off()
            if self._stop_metrics is not None:
                self._stop_metrics()
        if complete and isinstance(results[0], BaseException):
            raise results[0]
        cut = results[0] if complete and isinstance(results[0], int) else self._interceptor.calls.running
        self._log.info("stopped", drained=complete and not cut, cut_calls=cut)
        return complete

    async def _drain(self, on_drain: Callable[[], Awaitable[None]] | None) -> int:
        """Drains; returns how many calls were cut because the limit came first."""
        grace_s = self._settings.drain_timeout_s
        calls = self._interceptor.calls
        self._log.info("draining", calls=calls.running, drain_timeout_s=grace_s)
        await self._health.enter_graceful_shutdown()
        # A client watching the health would hold the server for the whole grace: only our own calls count.
        stopping = asyncio.create_task(self._server.stop(_NO_LIMIT_S))
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    # A call that was accepted just before may reach its handler just after.
                    while not stopping.done():
                        await calls.wait_idle()
                        await asyncio.wait({stopping}, timeout=_FLUSH_S)
                        if not calls.running:
                            break
            cut = calls.running
            await self._cut_off()
            await stopping
        finally:
            stopping.cancel()
        if on_drain is not None:
            await on_drain()
        return cut

    async def _cut_off(self) -> None:
        # Only once, and to its end also if whoever waits for it is cancelled: see _NO_LIMIT_S.
        self._cutting = self._cutting or asyncio.create_task(self._server.stop(None))
        await asyncio.shield(self._cutting)
        # stop() ends calls but does not wait for what their handlers still do in `finally`.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_UNWIND_S):
                await self._interceptor.calls.wait_idle()

    def _bind(self) -> None:
        listen = self._listen
        if listen.is_unix:
            taken = refuse_if_taken(listen)
            if taken is not None:
                raise ServeError(f"cannot listen on {listen}: {taken}")
        try:
            port = self._server.add_insecure_port(listen.bind)
        except RuntimeError:
            raise ServeError(f"cannot listen on {listen}: {_why_not(listen)}") from None
        self._bound_address = listen.bind if listen.is_unix else f"{listen.bind.rpartition(':')[0]}:{port}"

    def _serve_metrics(self) -> None:
        metrics_listen = self._settings.metrics_listen
        if metrics_listen is None:
            return
        try:
            self._stop_metrics = serve_metrics(metrics_listen)
        except OSError as error:
            raise ServeError(f"cannot serve metrics on {metrics_listen}: {error.strerror or error}") from None
        self._log.info("serving metrics", address=str(metrics_listen))


def _options(settings: ServiceSettings) -> list[tuple[str, int]]:
    return [
        # Otherwise a second server takes a share of the connections of the first, silently.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        ("grpc.max_send_message_length", settings.max_message_bytes),
        # A vanished client is noticed within 40 s. The core heeds the ping timeout, not the keepalive's.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.ping_timeout_ms", 10_000),
        # Clients may ping as often as every 10 s, also between calls, without being cut off for it.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ]


def _why_not(listen: Listen) -> str:
    """Finds the cause that the gRPC core does not hand out, by trying the same with a plain socket."""
    try:
        if listen.is_unix:
            with contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
                probe.bind(str(listen.path))
            listen.path.unlink(missing_ok=True)
            return "the socket cannot be bound"
        host, port = listen.host_port
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with contextlib.closing(socket.socket(family, kind, protocol)) as probe:
            probe.bind(address)
    except OSError as error:
        return error.strerror or str(error)
    return "the port cannot be bound"


@contextlib.asynccontextmanager
async def _signals(handle: Callable[[], None]) -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, handle)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
