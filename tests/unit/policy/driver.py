"""A decode loop around a default lane, on a machine that a story describes in a few numbers."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from burstgate_policy.core.config import CoreConfig
from burstgate_policy.core.controller import Lane
from burstgate_policy.core.hint import Hint
from burstgate_policy.core.mtp_policy import MtpPolicy
from burstgate_policy.core.regime import regime
from burstgate_policy.core.static_gate import static_gate
from burstgate_policy.core.types import (
    BurstOutcome,
    CostCell,
    Evidence,
    LaneCapabilities,
    Mode,
    PolicyKey,
    Reason,
    Situation,
    StepRecord,
    Verdict,
)

NOW = 1_800_000_000.0
PLAIN_MS = 100.0


def situation(width: int = 1, depth_tokens: int = 100, *, eligible: bool = True, cap: int = 0) -> Situation:
    return Situation(width, depth_tokens, 50, eligible, cap)


@dataclass(frozen=True)
class Ran:
    """A step that ran."""

    mode: Mode
    draft_width: int
    reason: Reason
    width: int
    emitted: int
    wall_ms: float

    @property
    def rounds(self) -> bool:
        return self.mode.speculates


@dataclass
class Machine:
    """What steps cost and keep; a round costs the same at every K unless a story says otherwise."""

    plain_ms: Callable[[Situation], float] = lambda _: PLAIN_MS
    round_ms: Callable[[Situation, int], float] = lambda _, k: 1.5 * PLAIN_MS
    kept: Callable[[int], int] = lambda _: 1
    """Drafts that each row keeps in the round with this number."""
    factor: Callable[[int, bool], float] = lambda _number, _speculates: 1.0
    """What noise, stalls and compilation do to the step with this number."""

    def cells(self, cap: int) -> list[CostCell]:
        """The cost table as decode measures it at start."""
        places = [situation(width) for width in (1, 2, 4, 8)]
        plain = [CostCell(at.width, 1, 64, self.plain_ms(at), 0.0) for at in places]
        return plain + [
            CostCell(at.width, k, 64, self.round_ms(at, k), 0.0) for at in places for k in range(2, cap + 1)
        ]


@dataclass
class Driver:
    """Runs each grant until its steps are over or the situation is another one, then reports it."""

    machine: Machine
    cap: int = 4
    verdict: Verdict | None = Verdict.ENABLE
    """What was settled before; None for a pairing that was never seen."""
    table: bool = True
    config: CoreConfig = field(default_factory=CoreConfig)

    def __post_init__(self) -> None:
        self.machine = replace(self.machine)  # A story may change what it was given.
        key = PolicyKey("target", "drafter", "machine", self.cap, "t", "d", "float32", "cpu", "blas", "1")
        capabilities = LaneCapabilities(batchable=True, max_width=64, drafter_kind="mtp_head", apple_gpu_generation=0)
        cells = self.machine.cells(self.cap) if self.table else []
        hint = None if self.verdict is None else _settled(key, self.verdict)
        enabled = static_gate(capabilities, cells).enabled
        self.policy = MtpPolicy.start(
            key, force=None, adaptive=True, static_default=enabled, hint=hint, config=self.config, now_s=NOW
        )
        self.lane = Lane(self.policy, capabilities, cells, self.config)
        self.ran: list[Ran] = []
        self._sequence: Iterator[int] = itertools.count(1)

    def run(self, steps: int, at: Situation | Callable[[int], Situation] | None = None) -> list[Ran]:
        """Runs so many steps; `at` may give the situation of each, counted from the first of these."""
        fixed = situation() if at is None or callable(at) else at
        where = at if callable(at) else lambda _: fixed
        first = len(self.ran)
        while len(self.ran) - first < steps:
            self._burst(where, first, steps)
        return self.ran[first:]

    def until(self, reason: Reason, limit: int, at: Situation | None = None) -> int:
        """Runs until a grant has this reason; the steps that ran before it."""
        first = len(self.ran)
        while self.lane.preview(at or situation(), NOW).reason is not reason:
            assert len(self.ran) - first < limit, f"{reason.name} did not come in {limit} steps"
            self.run(1, at)
        return len(self.ran) - first

    def speculates(self, at: Situation | None = None) -> bool:
        """Whether the lane's mode is speculation, probes aside."""
        grant = self.lane.preview(at or situation(), NOW)
        return grant.mode.speculates != grant.mode.probes

    def _burst(self, where: Callable[[int], Situation], first: int, steps: int) -> None:
        start = where(len(self.ran) - first)
        grant = self.lane.decide(start, NOW)
        records: list[StepRecord] = []
        for _ in range(grant.max_steps):
            number = len(self.ran)
            if number - first == steps or not _same(start, here := where(number - first)):
                break
            speculates = grant.mode.speculates
            wall_ms = self.machine.round_ms(here, grant.draft_width) if speculates else self.machine.plain_ms(here)
            kept = min(self.machine.kept(number), grant.draft_width - 1)
            self.ran.append(
                Ran(
                    grant.mode,
                    grant.draft_width,
                    grant.reason,
                    here.width,
                    here.width * (1 + kept),
                    wall_ms * self.machine.factor(number, speculates),
                )
            )
            records.append(_record(self.ran[-1], here, kept))
        self.lane.observe(BurstOutcome("", next(self._sequence), tuple(records), 0), NOW)


def rounds_share(ran: Sequence[Ran]) -> float:
    """Share of the steps that were rounds."""
    return sum(step.rounds for step in ran) / len(ran)


def plain_share(ran: Sequence[Ran]) -> float:
    return 1.0 - rounds_share(ran)


def rate(ran: Sequence[Ran]) -> float:
    """Delivered tokens per second."""
    return sum(step.emitted for step in ran) * 1000.0 / sum(step.wall_ms for step in ran)


def _same(start: Situation, here: Situation) -> bool:
    at, now = (replace(each, width=0, depth_tokens=0) for each in (start, here))
    return at == now and regime(start.width, start.depth_tokens) == regime(here.width, here.depth_tokens)


def _record(ran: Ran, at: Situation, kept: int) -> StepRecord:
    drafts = ran.draft_width - 1
    return StepRecord(
        mode=ran.mode,
        draft_width=ran.draft_width,
        width=at.width,
        depth_tokens=at.depth_tokens,
        emitted=ran.emitted,
        proposed=at.width * drafts,
        accepted_by_position=tuple(at.width if i < kept else 0 for i in range(drafts)),
        draft_ms=0.0,
        verify_ms=ran.wall_ms,
        overhead_ms=0.0,
        wall_ms=ran.wall_ms,
        excluded=not at.eligible or ran.mode is Mode.PINNED,
    )


def _settled(key: PolicyKey, verdict: Verdict) -> Hint:
    speedup = 1.6 if verdict is Verdict.ENABLE else 0.6
    evidence = Evidence(32, 8, 2, speedup, speedup, speedup, 0.9, 0.1, NOW, NOW, 1.5 * PLAIN_MS, PLAIN_MS)
    return Hint(key, verdict, 0.6, 4, evidence=evidence, settled_at_s=NOW, expires_at_s=NOW + 604_800.0)
