"""Runs the real engine under grants that follow no policy, and keeps every step it reports.

Imports mlx: install the BLAS first.
"""

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from burstgate_bench.command import NothingToMeasureError
from burstgate_bench.gate.traces import LaneLine
from burstgate_bench.policy_process import policy_process
from burstgate_bench.prompts import STANDARD
from burstgate_decode.config import DecodeSettings
from burstgate_decode.engine.engine import Engine, Pairing
from burstgate_decode.engine.request import AnswerRequest, Completion, Event, Failure, SpeculationChoice
from burstgate_decode.models.blas import BlasReport
from burstgate_decode.prompts import Chat, tokenize
from burstgate_decode.startup import Loaded, clock_ms, load_everything
from burstgate_policy.core.types import Grant, Mode, Reason, Situation, StepRecord
from burstgate_runtime.settings import load_settings

# Short, so that a machine that changes meanwhile is the same machine to every width.
_GRANT_STEPS = 2
# Everything an answer touches for the first time is slow; these steps are thrown away.
_WARM_UP_TOKENS = 16


@dataclass(frozen=True)
class Recording:
    """A run: the lane, and its steps with the name of their answer; those without a name only tell times."""

    lane: LaneLine
    steps: Sequence[tuple[str, StepRecord]]


class TurnGrants:
    """A `GrantSource` that grants some widths in turn, and keeps what it is told."""

    def __init__(self) -> None:
        self._turns = itertools.cycle((1,))
        self.steps: list[StepRecord] = []
        self.idled = threading.Event()
        """Set when no row is left: the last step of an answer is reported after the answer has ended."""

    def start(self, draft_widths: Sequence[int]) -> None:
        """Grants these from now on, 1 for plain, and forgets what it was told."""
        self._turns, self.steps = itertools.cycle(draft_widths), []
        self.idled.clear()

    def prefetch(self, situation: Situation) -> None:
        """Nothing to prepare."""

    def upcoming(self, wait_ms: float) -> Grant | None:
        """None: `next` is immediate."""
        return None

    def next(self, situation: Situation) -> Grant:
        """The next width, as far as the rows have room."""
        width = next(self._turns)
        width = min(width, situation.max_draft_width or width)
        mode = Mode.SPECULATIVE if width > 1 else Mode.PLAIN
        reason = Reason.FORCED_ON if width > 1 else Reason.FORCED_OFF
        return Grant(mode, width, _GRANT_STEPS, reason, "a run is being recorded")

    def report(self, step: StepRecord) -> None:
        """Keeps a step."""
        self.steps.append(step)

    def idle(self) -> None:
        """No row is left."""
        self.idled.set()


def record(blas: BlasReport, tokens: int, say: Callable[[str], None]) -> Recording:
    """Records the standard prompts of the pairing that the BURSTGATE_ variables name.

    Raises `NothingToMeasureError`, and what loading raises.
    """
    # The gRPC core reads this when it is first imported, and writes lines in a format of its own.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    loaded: list[Loaded] = []
    grants = TurnGrants()
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(policy_process())
        # What is recorded is what every width costs and keeps.
        settings = load_settings(DecodeSettings, policy_address=address, draft_stopping=False)

        def load() -> Pairing:
            loaded.append(load_everything(settings, blas))
            return replace(loaded[0].pairing, grants=grants)

        engine = Engine(load, settings.engine_limits, clock_ms)
        engine.start()
        # Ended in this order: the engine's thread, then what was loaded on it.
        stack.callback(_close, loaded)
        stack.callback(engine.stop)
        engine.wait_loaded()
        serving = loaded[0].serving
        if serving.drafter is None:
            raise NothingToMeasureError(f"there is nothing to record: {serving.no_drafter_because}")
        widest = serving.draft_width
        prompts = {case.kind: tokenize(serving.target, Chat(case.messages, "", {})) for case in STANDARD}

        def steps_of(prompt: tuple[int, ...], draft_widths: Sequence[int], most_tokens: int) -> list[StepRecord]:
            grants.start(draft_widths)
            _answer(engine, prompt, most_tokens)
            grants.idled.wait()
            return grants.steps

        steps: list[tuple[str, StepRecord]] = []
        for kind, prompt in prompts.items():
            say(f"recording {kind}")
            steps_of(prompt, (widest,), _WARM_UP_TOKENS)
            steps += [(kind, step) for step in steps_of(prompt, (widest,), tokens)]
            steps += [("", step) for step in steps_of(prompt, range(1, widest + 1), tokens)]
        return Recording(LaneLine(hardware=serving.hardware.label, draft_width=widest, cells=serving.costs), steps)


def _close(loaded: list[Loaded]) -> None:
    for one in loaded:
        one.close()


def _answer(engine: Engine, prompt: tuple[int, ...], tokens: int) -> None:
    """Runs one answer to its end; raises what it failed with."""
    ended = threading.Event()
    failures: list[Exception] = []

    def take(events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Failure):
                failures.append(event.error)
            if isinstance(event, Completion | Failure):
                ended.set()

    request = AnswerRequest(
        request_id="recording", index=0, prompt=prompt, max_tokens=tokens, speculation=SpeculationChoice.AUTO
    )
    engine.submit([(request, take)])
    ended.wait()
    if failures:
        raise failures[0]
