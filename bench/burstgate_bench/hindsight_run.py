"""Decodes texts in every mode, in ABBA order, and compares AUTO with the best mode in hindsight.

A text is a row of stretches, each an answer of so many tokens, decoded by one or several streams at once. All
modes decode the same tokens, so their rates are for the same work. Imports mlx: install the BLAS first.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from burstgate import PolicyState
from burstgate_bench.answers import Answer, Step, shared_steps, shared_tokens_per_second
from burstgate_bench.arms import Arm, ArmKind, abba
from burstgate_bench.hindsight_plan import TEXTS, HindsightOptions
from burstgate_bench.lab import Lab
from burstgate_bench.machine import Machine
from burstgate_bench.prompts import BY_KIND
from burstgate_bench.quiet import quiet_costs_ms, quiet_rate

# A pass gives the policy a profiled burst or two of each kind; it needs four in all.
_MOST_WARM_UP_PASSES = 6

_PLAIN = Arm(ArmKind.CLASSIC)
_AUTO = Arm(ArmKind.AUTO)


@dataclass(frozen=True)
class Cell:
    """One text at one number of streams."""

    rates: dict[str, tuple[float, ...]]
    """Tokens per second by mode, in the order they ran."""
    auto_bursts: dict[str, int]
    """AUTO's bursts by mode and reason."""
    quiet_rates: dict[str, float]
    """Tokens per second by mode, as on a quiet machine."""

    def rate(self, mode: str) -> float:
        """Median tokens per second of a mode."""
        return statistics.median(self.rates[mode])

    @property
    def best(self) -> str:
        """The mode that was fastest when held to the end."""
        return max((mode for mode in self.rates if mode != _AUTO.label), key=self.rate)

    @property
    def quiet_best(self) -> str:
        """The mode that would have been fastest on a quiet machine."""
        return max((mode for mode in self.rates if mode != _AUTO.label), key=self.quiet_rates.__getitem__)

    def quiet_auto_over(self, mode: str) -> float:
        """AUTO's rate over that of a mode, as on a quiet machine."""
        return self.quiet_rates[_AUTO.label] / self.quiet_rates[mode]

    @property
    def spread(self) -> float:
        """The largest spread of a mode: fastest minus slowest sample, over the slowest."""
        return max((max(rates) - min(rates)) / min(rates) for rates in self.rates.values())


@dataclass
class HindsightResult:
    """Everything that was measured."""

    options: HindsightOptions
    cells: dict[int, dict[str, Cell]] = field(default_factory=dict)
    """By number of streams and kind of text."""
    verdicts: dict[int, str] = field(default_factory=dict)
    """What the policy held after the warm-up, by number of streams."""
    differing: int = 0
    """Answers whose tokens were not those of the same stretch decoded plainly."""

    @property
    def line(self) -> dict[str, object]:
        """AUTO's rate over that of the best mode and of plain decoding, and that mode, by streams and text."""

        def table(of: Callable[[Cell], object]) -> dict[str, dict[str, object]]:
            return {
                str(streams): {text: of(cell) for text, cell in by_text.items()}
                for streams, by_text in self.cells.items()
            }

        return {
            "auto_vs_best": table(lambda cell: round(cell.rate(_AUTO.label) / cell.rate(cell.best), 3)),
            "auto_vs_plain": table(lambda cell: round(cell.rate(_AUTO.label) / cell.rate(_PLAIN.label), 3)),
            "best": table(lambda cell: cell.best),
            "quiet": {
                "auto_vs_best": table(lambda cell: round(cell.quiet_auto_over(cell.quiet_best), 3)),
                "auto_vs_plain": table(lambda cell: round(cell.quiet_auto_over(_PLAIN.label), 3)),
                "best": table(lambda cell: cell.quiet_best),
            },
            "differing_answers": self.differing,
        }

    def record(self, machine: Machine, load_before: float, *, damaged: bool) -> dict[str, object]:
        """The whole measurement as JSON."""
        return {
            "machine": asdict(machine),
            "load_before": load_before,
            "damaged_drafter": damaged,
            "options": asdict(self.options),
            "verdicts": {str(streams): verdict for streams, verdict in self.verdicts.items()},
            "cells": {
                str(streams): {text: asdict(cell) for text, cell in by_text.items()}
                for streams, by_text in self.cells.items()
            },
            **self.line,
        }


def run_hindsight(lab: Lab, options: HindsightOptions, say: Callable[[str], None]) -> HindsightResult:
    """Measures; `say` is told each result as it is found."""
    run = _Run(lab, options)
    modes = [_PLAIN, *(Arm(ArmKind.FIXED, k) for k in options.widths if k <= lab.serving.draft_width), _AUTO]
    for streams in options.streams:
        run.result.verdicts[streams] = run.settle(streams)
        say(f"{streams} streams: AUTO is {run.result.verdicts[streams]}")
        cells = run.result.cells[streams] = {}
        for text in options.texts:
            cell = cells[text] = run.cell(text, streams, modes)
            auto, best = cell.rate(_AUTO.label), cell.rate(cell.best)
            rates = ", ".join(f"{mode} {cell.rate(mode):.1f}" for mode in cell.rates)
            say(
                f"{streams} streams of {text}: AUTO {auto / best:.3f} of the best mode ({cell.best}), "
                f"{auto / cell.rate(_PLAIN.label):.3f} of plain; {rates} tokens/s, spread {cell.spread:.0%}"
            )
            say(
                f"  as on a quiet machine {cell.quiet_auto_over(cell.quiet_best):.3f} of {cell.quiet_best}, "
                f"{cell.quiet_auto_over(_PLAIN.label):.3f} of plain"
            )
            say(f"  AUTO's bursts: {', '.join(f'{count} {why}' for why, count in cell.auto_bursts.items())}")
    return run.result


class _Run:
    def __init__(self, lab: Lab, options: HindsightOptions) -> None:
        self._lab = lab
        self._tokens = options.tokens
        self._blocks = options.blocks
        self._expected: dict[tuple[int, ...], tuple[int, ...]] = {}
        self.result = HindsightResult(options)

    def settle(self, streams: int) -> str:
        """Runs AUTO until the policy's verdict stands; says how it stands."""
        for _ in range(_MOST_WARM_UP_PASSES):
            for kind in BY_KIND:
                self._lab.run_together([(_AUTO, prompt) for prompt in self._prompts(kind, streams)], 36)
            if self._lab.verdict().state is not PolicyState.PROFILING:
                break
        verdict = self._lab.verdict()
        return f"{verdict.state.value.lower()}; {verdict.explanation}"

    def cell(self, text: str, streams: int, modes: list[Arm]) -> Cell:
        """Every mode on one text, in ABBA order."""
        rates: dict[str, list[float]] = {mode.label: [] for mode in modes}
        steps: dict[str, list[Step]] = {mode.label: [] for mode in modes}
        bursts: dict[str, int] = {}
        for mode, _ in abba(modes, (None,), self._blocks):
            tokens = decode_s = 0.0
            for kind in TEXTS[text]:
                answers = self._stretch(mode, kind, streams)
                stretch = sum(count for answer in answers for _, count in answer.deliveries)
                tokens += stretch
                decode_s += stretch / shared_tokens_per_second(answers)
                steps[mode.label] += shared_steps(answers)
                if mode == _AUTO:
                    for why, count in answers[0].bursts.items():
                        bursts[why] = bursts.get(why, 0) + count
            rates[mode.label].append(tokens / decode_s)
        return Cell({mode: tuple(each) for mode, each in rates.items()}, bursts, _quiet_rates(steps))

    def _stretch(self, mode: Arm, kind: str, streams: int) -> list[Answer]:
        prompts = self._prompts(kind, streams)
        answers = self._lab.run_together([(mode, prompt) for prompt in prompts], self._tokens, ignore_eos=True)
        for prompt, answer in zip(prompts, answers, strict=True):
            self.result.differing += self._expected.setdefault(prompt, answer.tokens) != answer.tokens
        return answers

    def _prompts(self, kind: str, streams: int) -> list[tuple[int, ...]]:
        cases = BY_KIND[kind]
        return [self._lab.tokens_of(cases[place % len(cases)]) for place in range(streams)]


def _quiet_rates(steps: Mapping[str, Sequence[Step]]) -> dict[str, float]:
    rates = {}
    for mode, own in steps.items():
        others = [step for other, theirs in steps.items() if other != mode for step in theirs]
        rates[mode] = quiet_rate(own, quiet_costs_ms(own, others))
    return rates
