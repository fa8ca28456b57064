"""Checks on many prompts that no token depends on how or beside what it was decoded.

Plain answers run alone and in a batch; the speculative ones of a few prompts run together, so that rows of
different prompts, widths and modes share the engine. Imports mlx: install the BLAS first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from burstgate_bench.arms import Arm, ArmKind, fixed_arm
from burstgate_bench.divergence import Divergence
from burstgate_bench.lab import Lab
from burstgate_bench.prompts import EQUALITY_GROUP, PromptCase

# Two answers of each of these run together.
_SPECULATIVE_PROMPTS = EQUALITY_GROUP // 2
_SHOWN_CHARS = 40

_CLASSIC = Arm(ArmKind.CLASSIC)
_AUTO = Arm(ArmKind.AUTO)


@dataclass(frozen=True)
class EqualityOptions:
    """How much is compared."""

    tokens: int
    """Most tokens of an answer."""
    alone: int = EQUALITY_GROUP
    """Plain answers of each group that run with nothing beside them; the others are compared with the plain batch."""
    ignore_eos: bool = False
    """Let every answer run to its length."""


@dataclass
class EqualityResult:
    """What was compared and what differed."""

    prompts: int = 0
    tokens: int = 0
    """Tokens of the plain answers that others were compared with."""
    compared: int = 0
    """Tokens of the answers that were compared with them."""
    divergences: list[Divergence] = field(default_factory=list)

    @property
    def line(self) -> dict[str, int]:
        """The result as one JSON object."""
        return {
            "prompts": self.prompts,
            "tokens": self.tokens,
            "compared_tokens": self.compared,
            "divergences": len(self.divergences),
        }


def run_equality(
    lab: Lab,
    cases: Sequence[tuple[int, PromptCase]],
    options: EqualityOptions,
    say: Callable[[str], None] = lambda line: None,
) -> EqualityResult:
    """Compares the answers to `cases`, each given with its place, which decides its draft width."""
    result = EqualityResult()
    for start in range(0, len(cases), EQUALITY_GROUP):
        _Group(lab, cases[start : start + EQUALITY_GROUP], options, result, say).compare()
        say(
            f"{result.prompts} of {len(cases)} prompts, {result.tokens} plain tokens, {result.compared} compared with"
            f" them, {len(result.divergences)} divergences"
        )
    return result


class _Group:
    """Prompts that are answered together."""

    def __init__(
        self,
        lab: Lab,
        cases: Sequence[tuple[int, PromptCase]],
        options: EqualityOptions,
        result: EqualityResult,
        say: Callable[[str], None],
    ) -> None:
        self._lab = lab
        self._options = options
        self._result = result
        self._say = say
        self._names = [name_of(*case) for case in cases]
        self._prompts = [lab.tokens_of(case) for _, case in cases]
        self._fixed = [fixed_arm(place, lab.serving.draft_width) for place, _ in cases]
        self._expected: list[tuple[int, ...]] = []

    def compare(self) -> None:
        """Answers all prompts in every way; the first plain answer of each is the one to compare with."""
        places = range(len(self._prompts))
        self._expected = [self._answers([(_CLASSIC, at)])[0] for at in places[: self._options.alone]]
        plain = self._answers([(_CLASSIC, at) for at in places])
        known = len(self._expected)
        self._expected += plain[known:]
        self._check([(_CLASSIC, at) for at in places[:known]], plain[:known])
        self._result.prompts += len(places)
        self._result.tokens += sum(map(len, self._expected))
        for start in places[::_SPECULATIVE_PROMPTS]:
            some = places[start : start + _SPECULATIVE_PROMPTS]
            work = [*((self._fixed[at], at) for at in some), *((_AUTO, at) for at in some)]
            self._check(work, self._answers(work))

    def _answers(self, work: Sequence[tuple[Arm, int]]) -> list[tuple[int, ...]]:
        asked = [(arm, self._prompts[at]) for arm, at in work]
        answers = self._lab.run_together(asked, self._options.tokens, ignore_eos=self._options.ignore_eos)
        return [answer.tokens for answer in answers]

    def _check(self, work: Sequence[tuple[Arm, int]], answers: Sequence[tuple[int, ...]]) -> None:
        for (arm, at), answer in zip(work, answers, strict=True):
            self._result.compared += len(answer)
            found = self._lab.compare(self._names[at], arm, self._prompts[at], self._expected[at], answer)
            if found is not None:
                self._result.divergences.append(found)
                self._say(f"DIFFERENT: {found}")


def name_of(place: int, case: PromptCase) -> str:
    """Names a prompt in a report."""
    shown = case.text or (case.messages[-1][1] if case.messages else str(case.token_ids))
    return f"{place} {case.kind}: {shown[:_SHOWN_CHARS]}"
