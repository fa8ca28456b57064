"""Rounds of a simulated drafter, on the costs of a real two-core machine."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from burstgate_decode.engine.stopping import RoundOutcome, RoundRow, RowOutcome, Stopping
from burstgate_policy.core.types import CostCell

VERIFY_MS = {1: 65.0, 2: 67.0, 3: 67.5, 4: 69.0, 5: 73.5, 6: 77.0, 7: 76.0, 8: 74.0}
DRAFT_MS = 3.4
WIDEST = 8
DEPTH = 100


@dataclass(frozen=True)
class Text:
    """A round's drafts, were all of them made: the drafter's probabilities, and how many in a row are right."""

    probabilities: tuple[float, ...]
    matched: int


def cost_ms(draft_width: int, drafts: int | None = None, verify_ms: Mapping[int, float] = VERIFY_MS) -> float:
    return verify_ms[draft_width] + DRAFT_MS * (draft_width - 1 if drafts is None else drafts)


def table(verify_ms: Mapping[int, float] = VERIFY_MS) -> list[CostCell]:
    return [CostCell(1, width, DEPTH, ms, DRAFT_MS * (width - 1)) for width, ms in verify_ms.items()]


def texts(kinds: Sequence[str], rounds: int, seed: int = 1) -> list[Text]:
    """`rounds` rounds of each kind in turn. A draft is right with the probability that the drafter gives it."""
    rng = random.Random(seed)
    return [_text(kind, rng) for kind in kinds for _ in range(rounds)]


def _text(kind: str, rng: random.Random) -> Text:
    shape = {"list": (6.0, 0.4), "code": (1.2, 0.8), "prose": (1.0, 1.3)}[kind]
    probabilities = tuple(rng.betavariate(*shape) for _ in range(WIDEST - 1))
    matched = 0
    while matched < len(probabilities) and rng.random() < probabilities[matched]:
        matched += 1
    return Text(probabilities, matched)


def fixed_rate(text: Sequence[Text], draft_width: int) -> float:
    """Tokens per second of rounds of one width."""
    tokens = sum(min(one.matched, draft_width - 1) + 1 for one in text)
    return tokens * 1e3 / (len(text) * cost_ms(draft_width))


def best_fixed_rate(text: Sequence[Text]) -> float:
    return max(fixed_rate(text, width) for width in range(2, WIDEST + 1))


@dataclass(frozen=True)
class Played:
    """One round that ran."""

    draft_width: int
    drafts: int
    emitted: int
    wall_ms: float
    watched: bool


def play(
    stopping: Stopping,
    text: Sequence[Text],
    *,
    wait_ms: float = 0.0,
    noise: float = 0.05,
    width: int = WIDEST,
    verify_ms: Mapping[int, float] = VERIFY_MS,
) -> Iterator[Played]:
    """Runs a text under the rule. `wait_ms`: what it costs a round to decide. Wall times scatter by `noise`."""
    rng = random.Random(11)
    for one in text:
        plan = stopping.plan([RoundRow(width, width, sampled=False)], DEPTH)
        made = plan.widths[0] - 1
        verified = made
        if plan.rule is not None:
            made = 1
            while plan.rule.goes_on([one.probabilities[made - 1]]) and made < width - 1:
                made += 1
            (verified,) = plan.rule.worth_verifying()
        wall_ms = cost_ms(verified + 1, made, verify_ms) + (wait_ms if plan.rule is not None else 0.0)
        wall_ms *= max(0.5, rng.gauss(1.0, noise))
        emitted = min(one.matched, verified) + 1
        row = RowOutcome(verified + 1, False, one.probabilities[:made], min(one.matched, made, verified + 1))
        outcome = RoundOutcome([row], emitted, wall_ms, DEPTH)
        stopping.learn(outcome, plan)
        yield Played(verified + 1, made, emitted, wall_ms, plan.rule is not None)


def rate(rounds: Sequence[Played]) -> float:
    """Tokens per second delivered."""
    return sum(one.emitted for one in rounds) * 1e3 / sum(one.wall_ms for one in rounds)
