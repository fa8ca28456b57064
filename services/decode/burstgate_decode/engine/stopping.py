"""Decides within a round whether one more draft pays, and which drafts are worth verifying.

The rule is that of renewal reward: rounds follow each other, so the time that a round takes is worth the tokens
that rounds deliver in it. Let a token's price be the time over the tokens of the last rounds. Going on for m more
drafts gains that price for each token they may be expected to add, and costs what a round of m more verify rows
costs more. A round goes on while some m pays. It looks over all the rest instead of one draft ahead, because a
wider verify may be cheaper than a narrower one. Chances are the drafter's own probabilities, calibrated; costs
are the lane's table, corrected by the rounds that ran.

The rows of a batch share each draft step, so their chances add up and they stop together. Whether they also share
the width of the verify depends on the target; see `verify_choice.py`. Pure, and no judge of whether to speculate at
all: one draft is always made and verified.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from burstgate_decode.engine.draft_calibration import CalibrationConfig, DraftCalibration
from burstgate_decode.engine.stopping_worth import StoppingWorth, WorthConfig, fixed_tokens
from burstgate_decode.engine.verify_choice import VerifyChoice, between, choose_by_row, choose_columns
from burstgate_policy.core.config import DepthConfig
from burstgate_policy.core.regime import regime
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
class RoundRow:
    """What a row may do in the next round."""

    draft_width: int
    """Rows of its verify when no rule decides; 1 for a row that rides along without drafts."""
    widest: int
    """The most rows that a rule may give it."""
    sampled: bool
    """Whether it draws its tokens."""


@dataclass(frozen=True)
class RowOutcome:
    """What a round taught about a row."""

    draft_width: int
    """Rows of its verify."""
    sampled: bool
    probabilities: Sequence[float]
    """The drafter's, of each draft made for it; empty where it gives none."""
    matched: int
    """How many drafts, from the first on, the target chose itself, as far as the verify tells: it has a choice for
    one draft more than it has drafts."""


@dataclass(frozen=True)
class RoundOutcome:
    """What a round taught."""

    rows: Sequence[RowOutcome]
    emitted: int
    """Tokens over all rows."""
    wall_ms: float
    depth_tokens: int

    @property
    def widest(self) -> int:
        """Drafts verified of the widest row."""
        return max(row.draft_width for row in self.rows) - 1

    @property
    def mean(self) -> float:
        """Drafts verified of a row in the mean."""
        return sum(row.draft_width for row in self.rows) / len(self.rows) - 1

    @property
    def made(self) -> int:
        """Drafts made of each row that allowed them."""
        return max(self.widest, *(len(row.probabilities) for row in self.rows), 0)


class StoppingRule:
    """The decisions of one round."""

    def __init__(
        self,
        calibration: DraftCalibration,
        costs_ms: Sequence[float],
        draft_step_ms: float,
        price_ms: float,
        rows: Sequence[RoundRow],
        *,
        apart: bool = False,
    ) -> None:
        """`costs_ms[n]`: the whole round with n drafts of each row; element 0 is a plain step. `apart`: whether a row's
        drafts can be left unverified without those of the others.
        """
        self._calibration = calibration
        self._verify_ms = [cost_ms - drafts * draft_step_ms for drafts, cost_ms in enumerate(costs_ms)]
        self._draft_step_ms = draft_step_ms
        self._price_ms = price_ms
        self._rows = rows
        self._choose = choose_by_row if apart else choose_columns
        self._reached = [1.0] * len(rows)
        self._expected: list[list[float]] = []

    def goes_on(self, probabilities: Sequence[float]) -> bool:
        """Takes the drafter's probability of each row's newest draft; whether to make another one."""
        known, made = self._calibration, len(self._expected) + 1
        self._reached = [
            reached * known.kept(probability, made - 1, sampled=row.sampled)
            for row, reached, probability in zip(self._rows, self._reached, probabilities, strict=True)
        ]
        self._expected.append(self._tokens(self._reached, made))
        chances = [
            reached * known.next_kept(probability, sampled=row.sampled)
            for row, reached, probability in zip(self._rows, self._reached, probabilities, strict=True)
        ]
        further = [known.next_kept(None, sampled=row.sampled) for row in self._rows]
        expected, stopping_ms = list(self._expected), self._best(self._expected).worth_ms
        for drafts in range(made + 1, len(self._verify_ms)):
            expected.append(self._tokens(chances, drafts))
            if self._best(expected).worth_ms - (drafts - made) * self._draft_step_ms > stopping_ms:
                return True
            chances = [chance * follows for chance, follows in zip(chances, further, strict=True)]
        return False

    def worth_verifying(self) -> list[int]:
        """How many of the drafts made of each row are worth their rows of the verify."""
        # All of them are made already, so only the verify's part of a cost counts.
        return self._best(self._expected).drafts

    def _best(self, expected: Sequence[Sequence[float]]) -> VerifyChoice:
        return self._choose(expected, self._verify_ms, self._price_ms)

    def _tokens(self, chances: Sequence[float], drafts: int) -> list[float]:
        """Tokens expected from draft number `drafts`: rows that may not have so many get none."""
        return [chance if drafts < row.widest else 0.0 for row, chance in zip(self._rows, chances, strict=True)]


@dataclass(frozen=True)
class RoundPlan:
    """How a round is to run."""

    widths: list[int]
    """Rows of each row's verify; with a rule the most that it may have."""
    rule: StoppingRule | None = None
    """None: every draft is made and verified."""
    compares: bool = False
    """Whether a round without a rule runs to be compared with those that have one."""


@dataclass
class _Bucket:
    """What belongs to one power-of-two bucket of batch widths."""

    spent_ms: float
    tokens: float
    worth: StoppingWorth
    draft_share: float
    """What one more draft of each row costs, as a share of the widest round."""
    last_width: int = 2

    @property
    def price_ms(self) -> float:
        """Time over tokens of the last rounds."""
        return self.spent_ms / self.tokens

    def pay(self, wall_ms: float, tokens: int, decay: float) -> None:
        self.spent_ms = self.spent_ms * decay + wall_ms
        self.tokens = self.tokens * decay + tokens


class Stopping:
    """What the rounds of one pairing taught, and the plans that follow from it."""

    def __init__(
        self,
        costs: Iterable[CostCell],
        draft_width: int,
        config: StoppingConfig = StoppingConfig(),
        *,
        apart: bool = False,
    ) -> None:
        """`costs`: the lane's table. `draft_width`: the widest verify. `apart`: whether a verify of rows of different
        widths costs what is in it, instead of what it would if all were as wide as the widest.
        """
        self._cells = list(costs)
        self._config = config
        self._calibration = DraftCalibration(config.calibration)
        self._round_costs = RoundCosts(cap=draft_width, costs=self._cells, config=DepthConfig())
        self._draft_width = draft_width
        self._apart = apart
        self._buckets: dict[int, _Bucket] = {}

    def plan(self, rows: Sequence[RoundRow], depth_tokens: int) -> RoundPlan:
        """The next round of a batch in which some rows may draft."""
        granted = [row.draft_width for row in rows]
        costs_ms = self._costs_ms(depth_tokens, len(rows))
        if not costs_ms:
            return RoundPlan(granted)
        bucket = self._bucket(len(rows))
        if not bucket.worth.watches_next():
            if bucket.worth.resting:
                return RoundPlan(granted)
            return RoundPlan([min(bucket.last_width, row.widest) for row in rows], compares=True)
        widths = [row.widest for row in rows]
        draft_step_ms = bucket.draft_share * costs_ms[-1]
        rule = StoppingRule(
            self._calibration, costs_ms[: max(widths)], draft_step_ms, bucket.price_ms, rows, apart=self._apart
        )
        return RoundPlan(widths, rule)

    def learn(self, outcome: RoundOutcome, plan: RoundPlan | None) -> None:
        """Takes a round and the plan it followed; None if its widths were not this one's to plan."""
        rows = outcome.rows
        for row in rows:
            self._calibration.observe(row.probabilities, row.matched, row.draft_width, sampled=row.sampled)
        if not outcome.wall_ms > 0.0:
            return
        config = self._config
        bucket, costs_ms = self._bucket(len(rows)), self._costs_ms(outcome.depth_tokens, len(rows))
        verified = outcome.mean if self._apart else float(outcome.widest)
        # The width nearest to what ran stands for it.
        drafts = max(1, round(verified))
        draft_step_ms = bucket.draft_share * costs_ms[-1] if costs_ms else 0.0
        dropped_ms = (outcome.made - verified) * draft_step_ms
        share = costs_ms[drafts] / between(costs_ms, verified) if costs_ms else 1.0
        self._round_costs.observe(_record(outcome, drafts + 1, share * max(0.0, outcome.wall_ms - dropped_ms)))
        if plan is None or not costs_ms:
            return
        expected_ms = between(costs_ms, verified) + dropped_ms
        counted_ms = min(outcome.wall_ms, config.stall_clip * expected_ms)
        bucket.pay(counted_ms, outcome.emitted, config.price_decay)
        if plan.rule is not None:
            bucket.last_width = drafts + 1
            widest = max(plan.widths)
            bucket.worth.ran_watched(
                outcome.wall_ms,
                expected_ms,
                outcome.emitted,
                costs_ms[:widest],
                self._fixed_tokens(outcome, plan.widths, widest - 1),
            )
        elif plan.compares:
            bucket.worth.ran_whole(outcome.wall_ms, expected_ms)

    def _bucket(self, rows: int) -> _Bucket:
        key, _ = regime(rows, 0)
        if key not in self._buckets:
            cells, tokens = _cells_near(self._cells, rows), self._config.price_prior_tokens
            # No verify costs less than a plain step, and the least of several is not one that was stalled. A plain
            # step gives each row a token.
            price_ms = min((cell.verify_ms / cell.width for cell in cells), default=0.0)
            worth = StoppingWorth(self._config.worth)
            self._buckets[key] = _Bucket(price_ms * tokens, tokens, worth, _draft_share(cells))
        return self._buckets[key]

    def _costs_ms(self, depth_tokens: int, rows: int) -> list[float]:
        """Cost of a round by drafts, from a plain step on. Empty while a width has no cost."""
        by_width = self._round_costs.estimates_ms(regime(rows, depth_tokens), self._draft_width)
        widths = range(1, self._draft_width + 1)
        return [by_width[width] for width in widths] if all(width in by_width for width in widths) else []

    def _fixed_tokens(self, outcome: RoundOutcome, widths: Sequence[int], drafts: int) -> list[float]:
        """What rounds of 0 to `drafts` drafts would have delivered over all rows, none of more than its width."""
        total = [0.0] * (drafts + 1)
        for row, width in zip(outcome.rows, widths, strict=True):
            known = min(len(row.probabilities), row.draft_width)
            follows = self._calibration.next_kept(None, sampled=row.sampled)
            tokens = fixed_tokens(row.matched, known, follows, width - 1)
            for count in range(drafts + 1):
                total[count] += tokens[min(count, width - 1)]
        return total


def _record(outcome: RoundOutcome, draft_width: int, cost_ms: float) -> StepRecord:
    """The round as the cost table's corrections take it, as one of a width and its cost."""
    return StepRecord(
        mode=Mode.SPECULATIVE,
        draft_width=draft_width,
        width=len(outcome.rows),
        depth_tokens=outcome.depth_tokens,
        emitted=outcome.emitted,
        proposed=outcome.made,
        accepted_by_position=(),
        draft_ms=0.0,
        verify_ms=cost_ms,
        overhead_ms=0.0,
        wall_ms=cost_ms,
        excluded=False,
    )


def _cells_near(cells: Sequence[CostCell], rows: int) -> list[CostCell]:
    """The cells of the batch width nearest to `rows`, at the least depth that it has."""
    places = {(cell.width, cell.depth_tokens) for cell in cells}
    nearest = min(places, key=lambda at: (abs(math.log2(at[0] / rows)), at), default=None)
    return [cell for cell in cells if (cell.width, cell.depth_tokens) == nearest]


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
