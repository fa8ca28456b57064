"""A client of the decode service in a process of its own, as real clients are: never beside the engine's threads."""

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TypeAlias

from burstgate import Client, Delta, Stop

Deliveries: TypeAlias = list[list[tuple[float, int]]]
"""Of each answer, when tokens came, in milliseconds, and how many."""


@dataclass(frozen=True)
class Streams:
    """How many answers are streamed at once."""

    calls: int
    n: int
    """Answers of each call."""

    @property
    def width(self) -> int:
        """All answers."""
        return self.calls * self.n

    def __str__(self) -> str:
        return f"{self.width}" if self.calls == 1 else f"{self.width} in {self.calls} calls"


Stream: TypeAlias = Callable[[Sequence[int], Streams, int], Deliveries]
"""Streams plain answers of so many tokens to one prompt: (prompt, streams, tokens)."""

_client: Client | None = None


@contextlib.contextmanager
def client_process(address: str) -> Iterator[Stream]:
    """Starts the process for the length of the block."""
    # Not forked: a copy of a process that has threads may hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=_connect, initargs=(address,)) as pool:
        yield lambda prompt, streams, tokens: pool.submit(_stream, tuple(prompt), streams, tokens).result()


def _connect(address: str) -> None:
    global _client  # noqa: PLW0603  (the pool's way to keep something in its process)
    _client = Client(address)


def _stream(prompt: tuple[int, ...], streams: Streams, tokens: int) -> Deliveries:
    if _client is None:
        raise RuntimeError("the process has no client")
    call = partial(_call, _client, prompt, streams.n, tokens)
    with ThreadPoolExecutor(streams.calls) as pool:
        calls = [pool.submit(call) for _ in range(streams.calls)]
        return [row for one in calls for row in one.result()]


def _call(client: Client, prompt: tuple[int, ...], n: int, tokens: int) -> Deliveries:
    deliveries: Deliveries = [[] for _ in range(n)]
    stop = Stop(ignore_eos=True)
    for event in client.generate(prompt, n=n, max_tokens=tokens, speculation="off", stop=stop):
        if isinstance(event, Delta):
            deliveries[event.index].append((perf_counter() * 1e3, len(event.token_ids)))
    return deliveries
