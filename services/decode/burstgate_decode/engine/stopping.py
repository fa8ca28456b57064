"""Decides within a round whether one more draft pays, and which drafts are worth verifying.

The rule is that of renewal reward: rounds follow each other, so the time that a round takes is worth the tokens
that rounds deliver in it. Let a token's price be the time over the tokens of the last rounds. Going on for m more
drafts gains that price for each token they may be expected to add, and costs what a round of m more verify rows
costs more. A round goes on while some m pays. It looks over all the rest instead of one draft ahead, because a
wider verify may be cheaper than a narrower one. Chances are the drafter's own probabilities, calibrated; costs
are the lane's table, corrected by the rounds that ran.

A round may have several rows that share each draft step and the verify: their chances add up. Pure, and no judge
of whether to speculate at all: one draft is always made and verified.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from burstgate_decode.engine.draft_calibration import CalibrationConfig, DraftCalibration
from burstgate_decode.engine.stopping_worth import StoppingWorth, WorthConfig, fixed_tokens
from burstgate_policy.core.config import DepthConfig
from burstgate_policy.core.round_costs import RoundCosts
from burstgate_policy.core.types import CostCell, Mode, StepRecord


@dataclass(frozen=True)
class StoppingConfig:
    """What the rule needs to know besides what it measures."""

    price_decay: float = 0.95
    """What a round still counts one round later in the price of a token: a memory of about 20 rounds, so that the
    price follows the text."""
    price_prior_tokens: float = 4.0
    """Tokens at the price of a plain step that stand behind the first rounds."""
    stall_clip: float = 2.0
    """A round counts in the price for at most this many times its expected cost: one stall must not decide."""
    calibration: CalibrationConfig = field(default_factory=CalibrationConfig)
    worth: WorthConfig = field(default_factory=WorthConfig)


@dataclass(frozen=True)
class RoundOutcome:
    """What a round taught. Sequences have one element for each of the round's rows."""

    draft_width: int
    """Rows of the verify."""
    sampled: Sequence[bool]
    """Whether the row draws its tokens."""
    probabilities: Sequence[Sequence[float]]
    """The drafter's, of each draft that was made; empty where it gives none."""
    matched: Sequence[int]
    """How many drafts, from the first on, the target chose itself, as far as the verify tells: it has a choice for
    one draft more than it has drafts."""
    emitted: int
    """Tokens over all rows."""
    wall_ms: float
    depth_tokens: int

    @property
    def drafts(self) -> int:
        """Drafts made of each row."""
        return max(self.draft_width - 1, *map(len, self.probabilities))


class StoppingRule:
    """The decisions of one round."""

    def __init__(
        self,
        calibration: DraftCalibration,
        costs_ms: Sequence[float],
        draft_step_ms: float,
        price_ms: float,
        sampled: Sequence[bool],
    ) -> None:
        """`costs_ms[n]`: the whole round with n drafts of each row; element 0 is not read."""
        self._calibration = calibration
        self._costs_ms = costs_ms
        self._draft_step_ms = draft_step_ms
        self._price_ms = price_ms
        self._sampled = sampled
        self._reached = [1.0] * len(sampled)
        self._expected: list[float] = []

    def goes_on(self, probabilities: Sequence[float]) -> bool:
        """Takes the drafter's probability of each row's newest draft; whether to make another one."""
        known, place = self._calibration, len(self._expected)
        self._reached = [
            reached * known.kept(probability, place, sampled=sampled)
            for reached, probability, sampled in zip(self._reached, probabilities, self._sampled, strict=True)
        ]
        self._expected.append(sum(self._reached))
        chances = [
            reached * known.next_kept(probability, sampled=sampled)
            for reached, probability, sampled in zip(self._reached, probabilities, self._sampled, strict=True)
        ]
        further = [known.next_kept(None, sampled=sampled) for sampled in self._sampled]
        made, tokens = place + 1, 0.0
        for drafts in range(made + 1, len(self._costs_ms)):
            tokens += sum(chances)
            if self._price_ms * tokens > self._costs_ms[drafts] - self._costs_ms[made]:
                return True
            chances = [chance * follows for chance, follows in zip(chances, further, strict=True)]
        return False

    def worth_verifying(self) -> int:
        """How many of the drafts made are worth their rows of the verify; at least 1."""
        best, most, tokens = 1, -float("inf"), 0.0
        for count, expected in enumerate(self._expected, start=1):
            tokens += expected
            # All of them are made already, so only the verify's part of a cost counts.
            worth_ms = self._price_ms * tokens - (self._costs_ms[count] - count * self._draft_step_ms)
            if worth_ms > most:
                best, most = count, worth_ms
        return best


@dataclass(frozen=True)
class RoundPlan:
    """How a round is to run."""

    draft_width: int
    """Most rows of its verify."""
    rule: StoppingRule | None = None
    """None: it drafts and verifies them all."""
    compares: bool = False
    """Whether a round without a rule runs to be compared with those that have one."""


class Stopping:
    """What the rounds of one pairing taught, and the plans that follow from it."""

    def __init__(self, costs: Iterable[CostCell], draft_width: int, config: StoppingConfig = StoppingConfig()) -> None:
        """`costs`: the lane's table. `draft_width`: the widest verify."""
        cells = list(costs)
        self._config = config
        self._calibration = DraftCalibration(config.calibration)
        self._round_costs = RoundCosts(cap=draft_width, costs=cells, config=DepthConfig())
        self._worth = StoppingWorth(config.worth)
        self._draft_width = draft_width
        self._draft_share = _draft_share(cells)
        self._last_width = 2
        # No verify costs less than a plain step, and the least of several is not one that was stalled.
        self._spent_ms = min((cell.verify_ms for cell in cells), default=0.0) * config.price_prior_tokens
        self._tokens = config.price_prior_tokens

    def plan(self, draft_width: int, widest: int, depth_tokens: int, sampled: Sequence[bool]) -> RoundPlan:
        """The next round of some rows: `draft_width` verify rows each, or with a rule at most `widest`."""
        costs_ms = self._costs_ms(depth_tokens, len(sampled))
        if not costs_ms:
            return RoundPlan(draft_width)
        if not self._worth.watches_next():
            if self._worth.resting:
                return RoundPlan(draft_width)
            return RoundPlan(min(self._last_width, widest), compares=True)
        price_ms = self._spent_ms / self._tokens
        draft_step_ms = self._draft_share * costs_ms[-1]
        rule = StoppingRule(self._calibration, costs_ms[:widest], draft_step_ms, price_ms, sampled)
        return RoundPlan(widest, rule)

    def learn(self, outcome: RoundOutcome, plan: RoundPlan | None) -> None:
        """Takes a round and the plan it followed; None if its width was not this one's to plan."""
        for row, (probabilities, matched) in enumerate(zip(outcome.probabilities, outcome.matched, strict=True)):
            self._calibration.observe(probabilities, matched, outcome.draft_width, sampled=outcome.sampled[row])
        if not outcome.wall_ms > 0.0:
            return
        verified = outcome.draft_width - 1
        costs_ms = self._costs_ms(outcome.depth_tokens, len(outcome.sampled))
        dropped_ms = (outcome.drafts - verified) * self._draft_share * costs_ms[-1] if costs_ms else 0.0
        self._round_costs.observe(_record(outcome, dropped_ms))
        if plan is None or not costs_ms:
            return
        config, expected_ms = self._config, costs_ms[verified] + dropped_ms
        self._spent_ms *= config.price_decay
        self._spent_ms += min(outcome.wall_ms, config.stall_clip * expected_ms)
        self._tokens = self._tokens * config.price_decay + outcome.emitted
        if plan.rule is not None:
            self._last_width = outcome.draft_width
            self._worth.ran_watched(
                outcome.wall_ms,
                expected_ms,
                outcome.emitted,
                costs_ms[: plan.draft_width],
                self._fixed_tokens(outcome, plan.draft_width - 1),
            )
        elif plan.compares:
            self._worth.ran_whole(outcome.wall_ms, expected_ms)

    def _costs_ms(self, depth_tokens: int, rows: int) -> list[float]:
        """Cost of a round by drafts; element 0 only makes the index speak. Empty while a width has no cost."""
        by_width = self._round_costs.estimates_ms(rows, depth_tokens, self._draft_width)
        if len(by_width) < self._draft_width - 1:
            return []
        return [0.0, *(by_width[width] for width in range(2, self._draft_width + 1))]

    def _fixed_tokens(self, outcome: RoundOutcome, drafts: int) -> list[float]:
        """What rounds of 0 to `drafts` drafts would have delivered over all rows."""
        rows = [
            fixed_tokens(
                matched,
                min(len(probabilities), outcome.draft_width),
                self._calibration.next_kept(None, sampled=sampled),
                drafts,
            )
            for matched, probabilities, sampled in zip(
                outcome.matched, outcome.probabilities, outcome.sampled, strict=True
            )
        ]
        return [sum(tokens) for tokens in zip(*rows, strict=True)]


def _record(outcome: RoundOutcome, dropped_ms: float) -> StepRecord:
    """The round as the cost table's corrections take it: without the drafts that were not verified."""
    return StepRecord(
        mode=Mode.SPECULATIVE,
        draft_width=outcome.draft_width,
        width=len(outcome.sampled),
        depth_tokens=outcome.depth_tokens,
        emitted=outcome.emitted,
        proposed=outcome.drafts,
        accepted_by_position=(),
        draft_ms=0.0,
        verify_ms=max(0.0, outcome.wall_ms - dropped_ms),
        overhead_ms=0.0,
        wall_ms=outcome.wall_ms,
        excluded=False,
    )


def _draft_share(cells: Sequence[CostCell]) -> float:
    """What one more draft costs, as a share of the table's widest round: the share holds on a machine that got busy."""
    drafted = sorted((cell for cell in cells if cell.draft_width > 1), key=lambda cell: cell.draft_width)
    if not drafted:
        return 0.0
    few, many = drafted[0], drafted[-1]
    # The first draft also catches up with what was committed, so one draft is the difference that more make.
    more = many.draft_width - few.draft_width
    step_ms = (many.draft_ms - few.draft_ms) / more if more else many.draft_ms / (many.draft_width - 1)
    return max(0.0, step_ms / (many.verify_ms + many.draft_ms))
