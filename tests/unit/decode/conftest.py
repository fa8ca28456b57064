"""The default pair, loaded once in the test process, and rows that are stepped by hand."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from burstgate_decode.models.blas import BlasReport, install_blas

# Before anything imports mlx.
BLAS: BlasReport = install_blas()

from burstgate_decode.drafters.base import Drafter  # noqa: E402
from burstgate_decode.drafters.mtp_head import load_mtp_head  # noqa: E402
from burstgate_decode.engine.request import AnswerRequest, Completion, Event, SamplingParams  # noqa: E402
from burstgate_decode.engine.rounds import StepResult, prefill_chunk  # noqa: E402
from burstgate_decode.engine.row import Row, StepLabel, Ticket  # noqa: E402
from burstgate_decode.engine.stepper import Stepper  # noqa: E402
from burstgate_decode.engine.stopping import Stopping  # noqa: E402
from burstgate_decode.models.default_pair import default_models_cache, prepare_default_pair  # noqa: E402
from burstgate_decode.models.loading import load_target  # noqa: E402
from burstgate_decode.models.row_padding import make_rows_exact  # noqa: E402
from burstgate_decode.models.target import Target, linear_shapes  # noqa: E402
from burstgate_policy.core.types import Mode, Reason  # noqa: E402

WIDEST = 8


def clock_ms() -> float:
    return time.perf_counter() * 1e3


@dataclass(frozen=True)
class Pair:
    target: Target
    drafter: Drafter


@pytest.fixture(scope="session")
def pair() -> Pair:
    """The default pair, with the row padding that makes its verifies exact."""
    folders = prepare_default_pair(default_models_cache(os.environ), report=lambda *_: None)
    target = load_target(str(folders.target))
    make_rows_exact(BLAS, linear_shapes(target.model), WIDEST)
    return Pair(target, load_mtp_head(folders.drafter, target))


@dataclass
class Driven:
    """A row and everything it sent."""

    row: Row
    events: list[Event]

    @property
    def answer(self) -> list[int]:
        return self.row.tokens[len(self.row.request.prompt) :]

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if not hasattr(event, "error"))

    @property
    def completion(self) -> Completion:
        (last,) = [event for event in self.events if isinstance(event, Completion)]
        return last


class RowDriver:
    """Steps rows of the default pair by hand. Rounds run their full width unless `stopping` is set."""

    def __init__(self, pair: Pair) -> None:
        self.target = pair.target
        self.drafter = pair.drafter
        self.stopping: Stopping | None = None

    def open(self, request: AnswerRequest, chunk_tokens: int = 512) -> Driven:
        events: list[Event] = []
        row = Row(request, Ticket(), events.append, clock_ms)
        row.admit(self.target, self.drafter.open())
        while row.prefill_left:
            prefill_chunk(self.target, row, chunk_tokens)
        return Driven(row, events)

    def step(
        self,
        driven: Driven,
        draft_width: int,
        guard_margin: float = 0.0,
        look_ahead: bool = False,
        reason: Reason = Reason.GATE_SPECULATIVE,
    ) -> StepResult:
        stepper = Stepper(self.target, self.drafter, guard_margin, WIDEST, clock_ms, self.stopping)
        mode = Mode.SPECULATIVE if draft_width > 1 else Mode.PLAIN
        return stepper.run(driven.row, StepLabel(mode, draft_width, reason, ""), lambda: look_ahead)

    def run(self, request: AnswerRequest, width_of: Callable[[int], int]) -> Driven:
        """Generates an answer; `width_of(step)` is the width of each step."""
        driven = self.open(request)
        step = 0
        while not driven.row.finished:
            self.step(driven, width_of(step))
            step += 1
        return driven


@pytest.fixture
def rows(pair: Pair) -> RowDriver:
    return RowDriver(pair)


@pytest.fixture
def ask(pair: Pair) -> Callable[..., AnswerRequest]:
    """Builds a request from a user's message."""

    def build(message: str, max_tokens: int = 40, **changes: object) -> AnswerRequest:
        messages = [{"role": "user", "content": message}]
        prompt = tuple(pair.target.tokenizer.apply_chat_template(messages, add_generation_prompt=True))
        request = AnswerRequest("test", 0, prompt, max_tokens, SamplingParams(seed=7))
        return replace(request, **changes)  # type: ignore[arg-type]

    return build
