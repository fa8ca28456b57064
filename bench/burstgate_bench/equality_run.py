"""Checks on many prompts that speculation changes no token: plain, fixed width and AUTO answers compared.

Plain answers run alone; the speculative ones of a few prompts run together, so that rows of different
prompts, widths and modes share the engine. Imports mlx: install the BLAS first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from burstgate_bench.arms import Arm, ArmKind, fixed_arm
from burstgate_bench.divergence import Divergence
from burstgate_bench.lab import Lab
from burstgate_bench.prompts import PromptCase

# Two answers of each run together: with four prompts the engine's default of eight places is full.
_GROUP_PROMPTS = 4
_SHOWN_CHARS = 40

_CLASSIC = Arm(ArmKind.CLASSIC)
_AUTO = Arm(ArmKind.AUTO)


@dataclass(frozen=True)
class EqualityResult:
    """What was compared and what differed."""

    prompts: int
    tokens: int
    """Tokens of the plain answers; each was compared with two others."""
    divergences: list[Divergence]

    @property
    def line(self) -> dict[str, int]:
        """The result as one JSON object."""
        return {"prompts": self.prompts, "tokens": self.tokens, "divergences": len(self.divergences)}


def run_equality(
    lab: Lab,
    cases: Sequence[tuple[int, PromptCase]],
    max_tokens: int,
    say: Callable[[str], None] = lambda line: None,
) -> EqualityResult:
    """Compares the answers to `cases`, each given with its place, which decides its draft width."""
    tokens = 0
    divergences: list[Divergence] = []
    for start in range(0, len(cases), _GROUP_PROMPTS):
        group = cases[start : start + _GROUP_PROMPTS]
        prompts = [lab.tokens_of(case) for _, case in group]
        arms = [fixed_arm(place, lab.serving.draft_width) for place, _ in group]
        plain = [lab.run(_CLASSIC, prompt, max_tokens) for prompt in prompts]
        work = [*zip(arms, prompts, strict=True), *((_AUTO, prompt) for prompt in prompts)]
        speculative = lab.run_together(work, max_tokens)
        tokens += sum(len(answer.tokens) for answer in plain)
        for number, ((arm, prompt), answer) in enumerate(zip(work, speculative, strict=True)):
            at = number % len(group)
            found = lab.compare(name_of(*group[at]), arm, prompt, plain[at].tokens, answer.tokens)
            if found is not None:
                divergences.append(found)
                say(f"DIFFERENT: {found}")
        say(f"{start + len(group)} of {len(cases)} prompts, {tokens} plain tokens, {len(divergences)} divergences")
    return EqualityResult(len(cases), tokens, divergences)


def name_of(place: int, case: PromptCase) -> str:
    """Names a prompt in a report."""
    shown = case.text or (case.messages[-1][1] if case.messages else str(case.token_ids))
    return f"{place} {case.kind}: {shown[:_SHOWN_CHARS]}"
