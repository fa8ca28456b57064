"""Measures every arm on the three standard prompts in one run, and compares all their answers.

Arms run in ABBA order after the policy's profiling has settled. Greedy: every arm must give the plain
arm's tokens, and one that does not is part of the result. Imports mlx: install the BLAS first.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from burstgate import PolicyState, Verdict
from burstgate_bench.answers import Answer, Cell, summarize
from burstgate_bench.arms import Arm, ArmKind, abba, all_arms, by_arm
from burstgate_bench.divergence import Divergence
from burstgate_bench.lab import Lab
from burstgate_bench.machine import Machine, describe
from burstgate_bench.noise import load_average
from burstgate_bench.prompts import STANDARD
from burstgate_decode.startup import clock_ms

# Enough to touch everything an arm needs once before it is timed.
_TOUCH_TOKENS = 8
# A pass over all kinds gives the policy about one profiled burst for each; it needs four in all.
_MOST_WARM_UP_PASSES = 8

# Discarded after the first answer to a new kind: a short answer is one or two grants, and K moves between grants.
_FOLLOWING_ANSWERS = 1

_AUTO = Arm(ArmKind.AUTO)
_CHANGED = Arm(ArmKind.AUTO_AFTER_CHANGE)
_CLASSIC = Arm(ArmKind.CLASSIC)


@dataclass(frozen=True)
class QuickOptions:
    """How much is measured."""

    tokens: int = 36
    """Tokens of every answer: with two blocks the whole takes less than five minutes at 16 tokens a second."""
    blocks: int = 2
    """ABBA blocks: each gives two samples of every arm and kind."""
    openblas: bool = False
    """Also measure mlx-lm on OpenBLAS's products."""


@dataclass(frozen=True)
class Grants:
    """Where AUTO's bursts got their grants while it was measured."""

    policy: int
    fallback: int


@dataclass(frozen=True)
class QuickResult:
    """Everything that was measured."""

    options: QuickOptions
    machine: Machine
    answers: Mapping[Arm, Mapping[str, list[Answer]]]
    """By arm and kind, in the order they ran."""
    divergences: list[Divergence]
    verdict: Verdict
    """After the warm-up."""
    warm_up_tokens: int
    grants: Grants
    load_before: float
    load_after: float

    @property
    def settled(self) -> bool:
        """Whether profiling was over before anything was measured."""
        return self.verdict.state is not PolicyState.PROFILING

    @property
    def cells(self) -> dict[Arm, dict[str, Cell]]:
        """Statistics by arm and kind."""
        return {
            arm: {kind: summarize(answers) for kind, answers in by_kind.items()}
            for arm, by_kind in self.answers.items()
        }

    @property
    def line(self) -> dict[str, object]:
        """The result as one JSON object: median tokens per second by arm and kind."""
        return by_arm(
            {
                arm: {kind: cell.tokens_per_second for kind, cell in by_kind.items()}
                for arm, by_kind in self.cells.items()
            }
        )


def run_quick(lab: Lab, options: QuickOptions, load_before: float, say: Callable[[str], None]) -> QuickResult:
    """Measures. `load_before` was read before the models were loaded; `say` is told what happens, a line at a time."""
    machine = describe(lab.serving)
    prompts = {case.kind: lab.tokens_of(case) for case in STANDARD}
    arms = all_arms(lab.serving.draft_width, openblas=options.openblas)
    for arm in arms:
        if arm.kind is not ArmKind.AUTO:
            lab.run(arm, prompts["prose"], _TOUCH_TOKENS)
    warm_up = _settle(lab, prompts, options.tokens)
    verdict = lab.verdict()
    order = abba(arms, list(prompts), options.blocks)
    say(f"AUTO after {warm_up.tokens} warm-up tokens: {verdict.state.value.lower()}; {verdict.explanation}")
    say(f"{len(order)} answers of {options.tokens} tokens follow, {_minutes(lab, options, warm_up, order)}")
    before = _grants(lab)
    answers: dict[Arm, dict[str, list[Answer]]] = {arm: {kind: [] for kind in prompts} for arm in [*arms, _CHANGED]}
    start_ms, followed = clock_ms(), ""
    for done, (arm, kind) in enumerate(order, start=1):
        if arm == _AUTO and kind != followed:
            # Its own row: AUTO's is what a kind gets once the policy follows it.
            answers[_CHANGED][kind].append(lab.run(_CHANGED, prompts[kind], options.tokens))
            for _ in range(_FOLLOWING_ANSWERS):
                lab.run(_AUTO, prompts[kind], options.tokens)
            followed = kind
        answers[arm][kind].append(lab.run(arm, prompts[kind], options.tokens))
        if done % (len(arms) * len(prompts)) == 0:
            say(f"{done} of {len(order)} answers after {(clock_ms() - start_ms) / 60e3:.1f} min")
    after = _grants(lab)
    load_after = load_average()
    return QuickResult(
        options=options,
        machine=machine,
        answers=answers,
        divergences=_divergences(lab, prompts, answers),
        verdict=verdict,
        warm_up_tokens=warm_up.tokens,
        grants=Grants(after.policy - before.policy, after.fallback - before.fallback),
        load_before=load_before,
        load_after=load_after,
    )


@dataclass(frozen=True)
class _WarmUp:
    answers: int
    tokens: int
    decode_ms: float
    wall_ms: float


def _settle(lab: Lab, prompts: Mapping[str, tuple[int, ...]], tokens: int) -> _WarmUp:
    """Runs AUTO over all kinds until the policy's verdict stands; nothing of it is reported as a rate."""
    start_ms = clock_ms()
    answers, count, decode_ms = 0, 0, 0.0
    for _ in range(_MOST_WARM_UP_PASSES):
        for prompt in prompts.values():
            answer = lab.run(_AUTO, prompt, tokens)
            answers += 1
            count += len(answer.tokens)
            decode_ms += answer.decode_ms
        if lab.verdict().state is not PolicyState.PROFILING:
            break
    return _WarmUp(answers, count, decode_ms, clock_ms() - start_ms)


def _minutes(lab: Lab, options: QuickOptions, warm_up: _WarmUp, order: list[tuple[Arm, str]]) -> str:
    """How long the order will take, from the measured plain step and the warm-up's pace."""
    plain_ms = min(cell.verify_ms for cell in lab.serving.costs if cell.draft_width == 1)
    auto_ms = warm_up.decode_ms / warm_up.tokens
    # A width that fits one kind and not another lies between the two on average.
    fixed_ms = (plain_ms + auto_ms) / 2
    opening_ms = (warm_up.wall_ms - warm_up.decode_ms) / warm_up.answers
    paces = {ArmKind.AUTO: auto_ms, ArmKind.FIXED: fixed_ms}
    token_ms = sum(paces.get(arm.kind, plain_ms) for arm, _ in order)
    total_ms = options.tokens * token_ms + len(order) * opening_ms
    return f"about {total_ms / 60e3:.1f} min"


def _divergences(
    lab: Lab, prompts: Mapping[str, tuple[int, ...]], answers: Mapping[Arm, Mapping[str, list[Answer]]]
) -> list[Divergence]:
    """Each different answer once, compared with the first plain one. OpenBLAS rounds otherwise."""
    found: dict[Divergence, None] = {}
    for kind, prompt in prompts.items():
        expected = answers[_CLASSIC][kind][0].tokens
        for arm, by_kind in answers.items():
            if arm.kind is ArmKind.MLX_LM_ON_OPENBLAS:
                continue
            for got in dict.fromkeys(answer.tokens for answer in by_kind[kind]):
                divergence = lab.compare(kind, arm, prompt, expected, got)
                if divergence is not None:
                    found[divergence] = None
    return list(found)


def _grants(lab: Lab) -> Grants:
    link = lab.serving.link()
    return Grants(link.grants, link.fallbacks) if link is not None else Grants(0, 0)
