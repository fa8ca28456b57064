"""Puts the events of a stream together into whole answers.

Owns what has arrived of each of the n answers. A stream that ends before every answer is complete is an
error of the server and is reported as one. Must not know protos or gRPC.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TypeVar

from burstgate.errors import Internal
from burstgate.results import Completion, Delta, Event, Result

_T = TypeVar("_T")


class Answers:
    """Collects the events of one generation."""

    def __init__(self, n: int, request_id: str) -> None:
        self._n = max(n, 1)
        self._request_id = request_id
        self._deltas: dict[int, list[Delta]] = {}
        self._completions: dict[int, Completion] = {}

    def add(self, event: Event) -> None:
        """Takes the next event."""
        if isinstance(event, Delta):
            self._deltas.setdefault(event.index, []).append(event)
        else:
            self._completions[event.index] = event

    def all(self) -> tuple[Result, ...]:
        """Every answer, by index. For an ended stream."""
        if len(self._completions) < self._n:
            raise Internal(
                f"The stream ended with {len(self._completions)} of {self._n} answers complete.",
                reason="INCOMPLETE_STREAM",
                request_id=self._request_id,
            )
        return tuple(self._result(self._completions[index]) for index in sorted(self._completions))

    def only(self) -> Result:
        """The one answer. For an ended stream."""
        if self._n != 1:
            raise ValueError(f"{self._n} answers were asked for: use results()")
        return self.all()[0]

    def _result(self, completion: Completion) -> Result:
        deltas = self._deltas.get(completion.index, [])
        return Result(
            index=completion.index,
            text="".join(delta.text for delta in deltas),
            token_ids=_flat(delta.token_ids for delta in deltas),
            drafted=_flat(delta.drafted for delta in deltas),
            logprobs=_flat(delta.logprobs for delta in deltas),
            finish_reason=completion.finish_reason,
            stop_string=completion.stop_string,
            stop_token_id=completion.stop_token_id,
            usage=completion.usage,
            timings=completion.timings,
            speculation=completion.speculation,
            seed=completion.seed,
            request_id=self._request_id,
        )


def _flat(parts: Iterable[tuple[_T, ...]]) -> tuple[_T, ...]:
    return tuple(chain.from_iterable(parts))
