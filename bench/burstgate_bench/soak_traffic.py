"""Random traffic of a soak: callers that read, dawdle, give up and run out of time, and what became of each call.

What a caller asks and how it behaves is drawn from the seed and its own number alone. Judges nothing but one
thing: two answers to the same greedy request must agree as far as both go.
"""

import asyncio
import collections
import enum
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from burstgate import AsyncClient, BurstgateError, Cancelled, Delta, Sampling, Stop
from burstgate_bench.prompts import BY_KIND

_LONGEST_ANSWER = 96
_LONGEST_PROMPT = 700
_FIRST_ORDINARY_TOKEN = 500
_AFTER_REFUSAL_S = 1.0
_TENANTS = (None, "even", "odd")
_PRIORITIES = ("low", "normal", "normal", "high")
_MODES = ("auto", "auto", "on", "off")


class Manner(enum.Enum):
    """How a caller treats its stream."""

    READS = "reads"
    DAWDLES = "dawdles"
    GIVES_UP = "gives up"
    IS_LATE = "is late"


_MANNERS = (Manner.READS,) * 5 + (Manner.DAWDLES, Manner.GIVES_UP, Manner.GIVES_UP, Manner.IS_LATE)


@dataclass(frozen=True)
class Call:
    """One generation and how it is read."""

    options: dict[str, Any]
    """Arguments of the client's `generate`."""
    manner: Manner
    patience_events: int
    """Events after which a caller that gives up leaves."""
    pause_s: float
    """Between two reads of a caller that dawdles."""

    @property
    def repeatable(self) -> tuple[object, ...] | None:
        """What decides the text of a greedy answer; None if it is drawn by chance."""
        prompt, sampling = self.options["prompt"], self.options["sampling"]
        return None if sampling.temperature else (self.options["raw"], prompt)


@dataclass
class Tally:
    """What became of all calls."""

    ended: collections.Counter[str] = field(default_factory=collections.Counter)
    """Calls by their end: finished, cancelled, or the reason of the error."""
    tokens: int = 0
    gaps_ms: list[float] = field(default_factory=list)
    """Between two deliveries to a caller that reads at once."""
    first_ms: list[float] = field(default_factory=list)
    """From the call to the first delivery."""
    differing: int = 0
    """Greedy answers that another answer to the same prompt contradicts."""
    _known: dict[tuple[object, ...], tuple[int, ...]] = field(default_factory=dict)

    def compare(self, call: Call, tokens: Sequence[int]) -> None:
        """Holds a greedy answer, or the beginning of one, against the longest one known."""
        key = call.repeatable
        if key is None:
            return
        known, new = self._known.setdefault(key, tuple(tokens)), tuple(tokens)
        shared = min(len(known), len(new))
        self.differing += known[:shared] != new[:shared]
        if len(new) > len(known):
            self._known[key] = new


async def call_for_ever(client: AsyncClient, random: Random, tally: Tally) -> None:
    """One caller: asks again and again until it is cancelled."""
    while True:
        call = draw_call(random)
        try:
            tally.ended[await _run(client, call, tally)] += 1
        except BurstgateError as error:
            tally.ended[error.reason or error.code] += 1
            if error.retry_after_s is not None:
                await asyncio.sleep(min(error.retry_after_s, _AFTER_REFUSAL_S))


def draw_call(random: Random) -> Call:
    """Any generation that the service takes."""
    manner = random.choice(_MANNERS)
    mode = random.choice(_MODES)
    prompt, raw = _draw_prompt(random)
    sampling = (
        Sampling(temperature=0.8, top_p=0.95, seed=random.getrandbits(32)) if random.random() < 0.3 else Sampling()
    )
    options = {
        "prompt": prompt,
        "raw": raw,
        "sampling": sampling,
        "stop": Stop(ignore_eos=random.random() < 0.5),
        "speculation": mode,
        "draft_width": random.randint(2, 8) if mode == "on" and random.random() < 0.5 else None,
        "max_tokens": random.randint(1, _LONGEST_ANSWER),
        "logprobs": random.randint(0, 3) if random.random() < 0.1 else None,
        "tenant": random.choice(_TENANTS),
        "priority": random.choice(_PRIORITIES),
        "n": 2 if random.random() < 0.1 else 1,
        "timeout_s": random.uniform(0.05, 4.0) if manner is Manner.IS_LATE else None,
    }
    return Call(options, manner, random.randint(0, 12), random.uniform(0.05, 0.4))


def _draw_prompt(random: Random) -> tuple[str | tuple[int, ...], bool]:
    if random.random() < 0.5:
        case = random.choice(random.choice(list(BY_KIND.values())))
        return (case.text, True) if case.text else (case.messages[0][1], False)
    # Few beginnings, so that prompts share long ones.
    beginning = Random(random.randint(0, 5))
    ids = [beginning.randint(_FIRST_ORDINARY_TOKEN, 40_000) for _ in range(random.randint(1, _LONGEST_PROMPT))]
    return tuple(ids), False


async def _run(client: AsyncClient, call: Call, tally: Tally) -> str:
    start_s = time.perf_counter()
    tokens: dict[int, list[int]] = collections.defaultdict(list)
    last: dict[int, float] = {}
    events = 0
    stream = client.generate(**call.options)
    try:
        async for event in stream:
            events += 1
            now_s = time.perf_counter()
            if isinstance(event, Delta):
                tokens[event.index].extend(event.token_ids)
                tally.tokens += len(event.token_ids)
                if event.index in last and call.manner is not Manner.DAWDLES:
                    tally.gaps_ms.append((now_s - last[event.index]) * 1e3)
                last[event.index] = now_s
            if events == 1 and call.manner is not Manner.DAWDLES:
                tally.first_ms.append((now_s - start_s) * 1e3)
            if call.manner is Manner.GIVES_UP and events >= call.patience_events:
                stream.cancel()
            if call.manner is Manner.DAWDLES:
                await asyncio.sleep(call.pause_s)
    except Cancelled:
        return "cancelled"
    finally:
        for answer in tokens.values():
            tally.compare(call, answer)
    return "finished"
