"""Measures rounds that stop early beside rounds of fixed width, on text that changes kind.

Every prompt's answers run in ABBA order over the arms, so an arm meets another kind of text with each of its answers.
Greedy: every arm must give the same tokens. Imports mlx: install the BLAS first.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from burstgate_bench.answers import Answer, Cell, Step, summarize
from burstgate_bench.arms import Arm, ArmKind, abba
from burstgate_bench.lab import Lab
from burstgate_bench.prompts import MIXED, STANDARD
from burstgate_bench.quiet import quiet_costs_ms, quiet_rate

STOPPING = Arm(ArmKind.STOPPING)
MIX = "mix"
"""All prompts together."""
_FIXED_WIDTHS = (2, 3, 4, 6, 8)
# Enough to touch everything an arm needs once before it is timed.
_TOUCH_TOKENS = 8


@dataclass(frozen=True)
class StoppingResult:
    """Everything that was measured."""

    answers: Mapping[Arm, Mapping[int, Sequence[Answer]]]
    """By arm and place of the prompt, in the order they ran."""
    different: Sequence[tuple[Arm, int]]
    """Arms and places whose tokens are not the first arm's."""

    @property
    def cells(self) -> dict[Arm, dict[str, Cell]]:
        """Statistics by arm: of each standard kind, and of all prompts together, one sample for each pass."""
        return {
            arm: {
                **{case.kind: summarize(by_place[place]) for place, case in enumerate(STANDARD)},
                MIX: summarize([_joined(one_pass) for one_pass in zip(*by_place.values(), strict=True)]),
            }
            for arm, by_place in self.answers.items()
        }

    @property
    def quiet_rates(self) -> dict[Arm, dict[str, float]]:
        """Tokens per second by arm and kind as on a quiet machine."""
        everybody = {
            arm: [step for each in by_place.values() for step in _steps(each)] for arm, by_place in self.answers.items()
        }
        rates: dict[Arm, dict[str, float]] = {}
        for arm, by_place in self.answers.items():
            others = [step for other, steps in everybody.items() if other != arm for step in steps]
            costs_ms = quiet_costs_ms(everybody[arm], others)
            rates[arm] = {
                **{case.kind: quiet_rate(_steps(by_place[place]), costs_ms) for place, case in enumerate(STANDARD)},
                MIX: quiet_rate(everybody[arm], costs_ms),
            }
        return rates


def run_stopping(lab: Lab, tokens: int, blocks: int, say: Callable[[str], None]) -> StoppingResult:
    """Measures with answers of `tokens` tokens, two of each arm and prompt in a block. `say` is told what happens."""
    prompts = [lab.tokens_of(case) for case in MIXED]
    widest = lab.serving.draft_width
    arms = [STOPPING, *(Arm(ArmKind.FIXED, width) for width in _FIXED_WIDTHS if width <= widest)]
    for arm in arms:
        lab.run(arm, prompts[0], _TOUCH_TOKENS)
    # Once over all prompts, so that what the rule knows is what it knows after a minute of traffic.
    for prompt in prompts:
        lab.run(STOPPING, prompt, tokens)
    answers: dict[Arm, dict[int, list[Answer]]] = {arm: {place: [] for place in range(len(prompts))} for arm in arms}
    order = abba(arms, range(len(prompts)), blocks)
    say(f"{len(order)} answers of {tokens} tokens follow")
    for arm, place in order:
        answers[arm][place].append(lab.run(arm, prompts[place], tokens))
    return StoppingResult(answers, _different(answers))


def _steps(answers: Sequence[Answer]) -> list[Step]:
    return [step for answer in answers for step in answer.steps]


def _joined(answers: Sequence[Answer]) -> Answer:
    """Answers one after another, as one that is timed over all of them."""
    return Answer(
        tokens=tuple(token for answer in answers for token in answer.tokens[answer.first_delivery_tokens :]),
        first_delivery_tokens=0,
        decode_ms=sum(answer.decode_ms for answer in answers),
        rounds=sum(answer.rounds for answer in answers),
        proposed=sum(answer.proposed for answer in answers),
        accepted=sum(answer.accepted for answer in answers),
        plain_steps=sum(answer.plain_steps for answer in answers),
    )


def _different(answers: Mapping[Arm, Mapping[int, Sequence[Answer]]]) -> list[tuple[Arm, int]]:
    expected = {place: each[0].tokens for place, each in answers[STOPPING].items()}
    return [
        (arm, place)
        for arm, by_place in answers.items()
        for place, each in by_place.items()
        if any(answer.tokens != expected[place] for answer in each)
    ]
