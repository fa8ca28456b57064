"""How fast prompts are read and steps run: the least time in which a first token can be hoped for.

Every choice here errs on the side of hope, because an estimate turns requests away. It is half of what the
fastest chunks and steps of late would take, only whole chunks count, and what was measured is forgotten after a
minute, so that a slow spell cannot turn away everything that might show that it is over.
"""

from collections import deque
from dataclasses import dataclass

# Of each kind: with fewer nothing is estimated, and no more are looked at.
_LEAST_MEASURED, _MOST_MEASURED = 4, 64
_FORGOTTEN_MS = 60_000.0
_SHARE = 0.5


@dataclass(frozen=True)
class Speed:
    """The fastest that was measured of late, in milliseconds."""

    chunk_tokens: int
    chunk_ms: float
    step_ms: float

    def first_token_ms(self, prompt_tokens: int) -> float:
        """Least time to the first token of a prompt of which nothing was read."""
        # The first step reads the prompt's last token, where the last chunk does not.
        return _SHARE * ((prompt_tokens - 1) // self.chunk_tokens * self.chunk_ms + self.step_ms)


class Pace:
    """Measurements of the last chunks and steps."""

    def __init__(self, chunk_tokens: int) -> None:
        """`chunk_tokens`: of a whole chunk of a prompt; shorter ones cost more a token and say nothing."""
        self._chunk_tokens = chunk_tokens
        self._chunks: deque[tuple[float, float]] = deque(maxlen=_MOST_MEASURED)
        self._steps: deque[tuple[float, float]] = deque(maxlen=_MOST_MEASURED)

    def read(self, tokens: int, ms: float, now_ms: float) -> None:
        """Takes the time of a chunk of a prompt, which may be a larger one."""
        if tokens >= self._chunk_tokens:
            self._chunks.append((now_ms, ms * self._chunk_tokens / tokens))

    def stepped(self, ms: float, now_ms: float) -> None:
        """Takes the time of a step."""
        self._steps.append((now_ms, ms))

    def speed(self, now_ms: float) -> Speed | None:
        """The speed of late; None where too little was measured."""
        chunks = [ms for at_ms, ms in self._chunks if now_ms - at_ms <= _FORGOTTEN_MS]
        steps = [ms for at_ms, ms in self._steps if now_ms - at_ms <= _FORGOTTEN_MS]
        if min(len(chunks), len(steps)) < _LEAST_MEASURED:
            return None
        return Speed(self._chunk_tokens, min(chunks), min(steps))
