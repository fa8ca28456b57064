"""A client of the decode service in a process of its own, as real clients are: never beside the engine's threads."""

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from time import perf_counter
from typing import TypeAlias

from burstgate import Client, Delta, Stop

Deliveries: TypeAlias = list[list[tuple[float, int]]]
"""Of each answer, when tokens came, in milliseconds, and how many."""
Stream: TypeAlias = Callable[[Sequence[int], int, int], Deliveries]
"""Streams `n` plain answers of so many tokens to one prompt: (prompt, n, tokens)."""

_client: Client | None = None


@contextlib.contextmanager
def client_process(address: str) -> Iterator[Stream]:
    """Starts the process for the length of the block."""
    # Not forked: a copy of a process that has threads may hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=_connect, initargs=(address,)) as pool:
        yield lambda prompt, n, tokens: pool.submit(_stream, tuple(prompt), n, tokens).result()


def _connect(address: str) -> None:
    global _client  # noqa: PLW0603  (the pool's way to keep something in its process)
    _client = Client(address)


def _stream(prompt: tuple[int, ...], n: int, tokens: int) -> Deliveries:
    if _client is None:
        raise RuntimeError("the process has no client")
    deliveries: Deliveries = [[] for _ in range(n)]
    stop = Stop(ignore_eos=True)
    for event in _client.generate(prompt, n=n, max_tokens=tokens, speculation="off", stop=stop):
        if isinstance(event, Delta):
            deliveries[event.index].append((perf_counter() * 1e3, len(event.token_ids)))
    return deliveries
