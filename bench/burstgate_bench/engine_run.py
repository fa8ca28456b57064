"""Measures the engine against mlx-lm at every batch width, and speculation and gRPC against its own plain steps.

All arms share one process and one load of the models, and run in ABBA order. Imports mlx: install the BLAS first.
"""

import itertools
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial

from burstgate import PolicyState
from burstgate_bench.answers import Answer, shared_tokens_per_second
from burstgate_bench.arms import Arm, ArmKind, abba
from burstgate_bench.duels import Duel, run_duel, run_duels
from burstgate_bench.engine_parts import Part
from burstgate_bench.grpc_client import Stream, Streams, client_process
from burstgate_bench.host_time import host_ms
from burstgate_bench.lab import Lab
from burstgate_bench.prompts import BY_KIND, PromptCase
from burstgate_decode.startup import clock_ms

BATCH_WIDTHS = (2, 4, 8)
AUTO_WIDTHS = (1, 4, 8)
# Those of one width share their other side.
_GRPC_STREAMS = ((Streams(1, 1),), (Streams(1, 8), Streams(8, 1)))
# A few per cent that are lost want more samples than what speculation wins, and need no longer ones.
_GRPC_BLOCKS = 3
_GRPC_SHARE = 2
# Calls start one after another: in fewer tokens their answers are hardly written together.
_GRPC_LEAST_TOKENS = 16
_FIRST_TOKEN_REPEATS = 4
# A difference of a few milliseconds in a second wants more samples than a ratio.
_FIRST_TOKEN_BLOCKS = 4
_FIRST_ORDINARY_TOKEN = 500
_HOST_WIDTHS = (1, 8)
# Enough to read a prompt into the prefix cache and to run plain steps of its width.
_WARM_UP_TOKENS = 8
# A pass gives the policy a profiled burst or two of each kind; it needs four in all.
_MOST_WARM_UP_PASSES = 6

_CLASSIC = Arm(ArmKind.CLASSIC)
_AUTO = Arm(ArmKind.AUTO)


@dataclass(frozen=True)
class EngineOptions:
    """How much is measured."""

    tokens: int
    blocks: int
    openblas: bool
    """Let mlx-lm run on OpenBLAS's products instead of the shim's."""
    parts: Collection[Part]


@dataclass(frozen=True)
class FirstToken:
    """Median milliseconds from the request to its first token, on an idle engine."""

    prompt_tokens: int
    ours_ms: float
    theirs_ms: float


@dataclass
class EngineResult:
    """Everything that was measured, by width or kind."""

    single: dict[str, Duel] = field(default_factory=dict)
    batch: dict[int, Duel] = field(default_factory=dict)
    auto: dict[int, dict[str, Duel]] = field(default_factory=dict)
    grpc: dict[str, Duel] = field(default_factory=dict)
    first_token: FirstToken | None = None
    host_ms: dict[int, float] = field(default_factory=dict)
    """Milliseconds of a step around the arithmetic."""
    differing: int = 0
    """Answers whose tokens were not those of the same prompt decoded plainly."""

    @property
    def line(self) -> dict[str, object]:
        """The result as one JSON object: how many times as fast as the other side."""
        return {
            "single_vs_mlx_lm": {kind: round(duel.ratio, 3) for kind, duel in self.single.items()},
            "batch_vs_mlx_lm": {str(width): round(duel.ratio, 3) for width, duel in self.batch.items()},
            "auto_vs_plain": {
                str(width): {kind: round(duel.ratio, 3) for kind, duel in by_kind.items()}
                for width, by_kind in self.auto.items()
            },
            "grpc_vs_engine": {streams: round(duel.ratio, 3) for streams, duel in self.grpc.items()},
            "first_token_over_mlx_lm_ms": round(self.first_token.ours_ms - self.first_token.theirs_ms, 1)
            if self.first_token
            else None,
            "host_ms": {str(width): round(ms, 2) for width, ms in self.host_ms.items()},
            "differing_answers": self.differing,
        }


def run_engine(lab: Lab, options: EngineOptions, say: Callable[[str], None]) -> EngineResult:
    """Measures; `say` is told each result as it is found."""
    bench = _Bench(lab, options)
    result = EngineResult()
    for part in Part:
        if part in options.parts:
            _MEASURES[part](lab, bench, result, say)
    result.differing = bench.differing
    return result


def _measure_single(_lab: Lab, bench: "_Bench", result: EngineResult, say: Callable[[str], None]) -> None:
    for kind, cases in BY_KIND.items():
        duel = result.single[kind] = bench.single(cases[0])
        say(_shown(f"one {kind} stream, plain against mlx_lm.stream_generate", duel))


def _measure_batch(_lab: Lab, bench: "_Bench", result: EngineResult, say: Callable[[str], None]) -> None:
    for width in BATCH_WIDTHS:
        duel = result.batch[width] = bench.batch(width)
        say(_shown(f"{width} mixed streams, plain against mlx-lm's BatchGenerator", duel))


def _measure_auto(_lab: Lab, bench: "_Bench", result: EngineResult, say: Callable[[str], None]) -> None:
    for width in AUTO_WIDTHS:
        say(f"{width} streams: AUTO is {bench.settle(width)}")
        result.auto[width] = {}
        for kind in BY_KIND:
            duel = result.auto[width][kind] = bench.auto(width, kind)
            say(_shown(f"{width} {kind} streams, AUTO against plain", duel))


def _measure_first_token(_lab: Lab, bench: "_Bench", result: EngineResult, say: Callable[[str], None]) -> None:
    first = result.first_token = bench.first_token()
    say(
        f"first token of a prompt of {first.prompt_tokens}: {first.ours_ms:.0f} ms,"
        f" with mlx_lm.stream_generate {first.theirs_ms:.0f} ms"
    )


def _measure_grpc(lab: Lab, bench: "_Bench", result: EngineResult, say: Callable[[str], None]) -> None:
    with lab.served() as address, client_process(address) as stream:
        for streams in _GRPC_STREAMS:
            for one, duel in zip(streams, bench.grpc(stream, streams), strict=True):
                result.grpc[str(one)] = duel
                say(_shown(f"streams, {one}: through gRPC against the engine in process", duel))


def _measure_host(lab: Lab, _bench: "_Bench", result: EngineResult, say: Callable[[str], None]) -> None:
    for width in _HOST_WIDTHS:
        result.host_ms[width] = host_ms(lab.serving.target, width)
        say(f"{width} streams of a target that computes next to nothing: {result.host_ms[width]:.2f} ms a step")


_MEASURES = {
    Part.SINGLE: _measure_single,
    Part.BATCH: _measure_batch,
    Part.AUTO: _measure_auto,
    Part.FIRST: _measure_first_token,
    Part.GRPC: _measure_grpc,
    Part.HOST: _measure_host,
}


class _Plain:
    """One plain answer of two tokens, by either side."""

    def __init__(self, lab: Lab, prompt: tuple[int, ...]) -> None:
        self._lab = lab
        self._prompt = prompt

    def ours(self) -> Answer:
        return self._lab.run_together([(_CLASSIC, self._prompt)], 2, ignore_eos=True)[0]

    def theirs(self) -> Answer:
        return self._lab.baseline.mlx_lm(self._prompt, 2)


class _Bench:
    """The sides of every duel. Each call runs answers and returns their rate."""

    def __init__(self, lab: Lab, options: EngineOptions) -> None:
        self._lab = lab
        self._tokens = options.tokens
        self._blocks = options.blocks
        self._openblas = options.openblas
        self._expected: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._settled = False
        self.differing = 0

    def single(self, case: PromptCase) -> Duel:
        prompt = self._lab.tokens_of(case)
        self._warm_up([prompt], alone=True)
        return run_duel(partial(self._plain, [prompt]), lambda: self._theirs([prompt], alone=True), self._blocks)

    def batch(self, width: int) -> Duel:
        prompts = self._mixed(width)
        self._warm_up(prompts, alone=False)
        return run_duel(partial(self._plain, prompts), partial(self._theirs, prompts, alone=False), self._blocks)

    def settle(self, width: int) -> str:
        """Runs AUTO until the policy's verdict stands, for all widths; says how it stands."""
        for _ in range(_MOST_WARM_UP_PASSES):
            if self._settled:
                break
            for kind in BY_KIND:
                self._auto(self._of_kind(width, kind))
            self._settled = self._lab.verdict().state is not PolicyState.PROFILING
        verdict = self._lab.verdict()
        return f"{verdict.state.value.lower()}; {verdict.explanation}"

    def auto(self, width: int, kind: str) -> Duel:
        prompts = self._of_kind(width, kind)
        # The policy's K follows a kind from its second answer on.
        self._auto(prompts)
        return run_duel(partial(self._auto, prompts), partial(self._plain, prompts), self._blocks)

    def first_token(self) -> FirstToken:
        """How long a prompt that nobody asked before takes to its first token, here and with mlx-lm."""
        prompt = self._of_kind(1, "code")[0] * _FIRST_TOKEN_REPEATS
        new = (_Plain(self._lab, (place, *prompt)) for place in itertools.count(_FIRST_ORDINARY_TOKEN))
        self._first_of(next(new).ours)
        times_ms: dict[str, list[float]] = {"ours": [], "theirs": []}
        for side, _ in abba(("ours", "theirs"), (None,), _FIRST_TOKEN_BLOCKS * self._blocks):
            one = next(new)
            times_ms[side].append(self._first_of(one.ours if side == "ours" else one.theirs))
        return FirstToken(len(prompt) + 1, *(statistics.median(times) for times in times_ms.values()))

    def grpc(self, stream: Stream, streams: Sequence[Streams]) -> list[Duel]:
        """`streams` are all of one width."""
        prompt, tokens = self._of_kind(1, "code")[0], max(self._tokens // _GRPC_SHARE, _GRPC_LEAST_TOKENS)
        for one in streams:
            stream(prompt, one, _WARM_UP_TOKENS)
        return run_duels(
            [partial(self._streamed, stream, prompt, one, tokens) for one in streams],
            partial(self._engine, _CLASSIC, [prompt] * streams[0].width, tokens),
            _GRPC_BLOCKS * self._blocks,
        )

    def _warm_up(self, prompts: Sequence[tuple[int, ...]], *, alone: bool) -> None:
        self._lab.run_together([(_CLASSIC, prompt) for prompt in prompts], _WARM_UP_TOKENS, ignore_eos=True)
        self._their_answers(prompts, _WARM_UP_TOKENS, alone=alone)

    def _plain(self, prompts: Sequence[tuple[int, ...]]) -> float:
        return self._engine(_CLASSIC, prompts)

    def _auto(self, prompts: Sequence[tuple[int, ...]]) -> float:
        return self._engine(_AUTO, prompts)

    def _engine(self, arm: Arm, prompts: Sequence[tuple[int, ...]], tokens: int | None = None) -> float:
        answers = self._lab.run_together([(arm, prompt) for prompt in prompts], tokens or self._tokens, ignore_eos=True)
        self._compare(prompts, answers)
        return shared_tokens_per_second(answers)

    def _theirs(self, prompts: Sequence[tuple[int, ...]], *, alone: bool) -> float:
        answers = self._their_answers(prompts, self._tokens, alone=alone)
        return answers[0].tokens_per_second if alone else shared_tokens_per_second(answers)

    def _their_answers(self, prompts: Sequence[tuple[int, ...]], tokens: int, *, alone: bool) -> Sequence[Answer]:
        baseline = self._lab.baseline
        if alone:
            one = baseline.mlx_lm_on_openblas if self._openblas else baseline.mlx_lm
            return [one(prompts[0], tokens)]
        batch = baseline.mlx_lm_batch_on_openblas if self._openblas else baseline.mlx_lm_batch
        return batch(prompts, tokens)

    def _streamed(self, stream: Stream, prompt: tuple[int, ...], streams: Streams, tokens: int) -> float:
        deliveries = stream(prompt, streams, tokens)
        return shared_tokens_per_second([Answer((), 1, 0.0, deliveries=tuple(row)) for row in deliveries])

    def _first_of(self, answer: Callable[[], Answer]) -> float:
        start_ms = clock_ms()
        return answer().deliveries[0][0] - start_ms

    def _compare(self, prompts: Sequence[tuple[int, ...]], answers: Sequence[Answer]) -> None:
        for prompt, answer in zip(prompts, answers, strict=True):
            expected = self._expected.setdefault(prompt, answer.tokens)
            self.differing += expected[: len(answer.tokens)] != answer.tokens[: len(expected)]

    def _of_kind(self, width: int, kind: str) -> list[tuple[int, ...]]:
        cases = BY_KIND[kind]
        return [self._lab.tokens_of(cases[place % len(cases)]) for place in range(width)]

    def _mixed(self, width: int) -> list[tuple[int, ...]]:
        kinds = list(BY_KIND.values())
        return [self._lab.tokens_of(kinds[place % len(kinds)][place // len(kinds)]) for place in range(width)]


def _shown(what: str, duel: Duel) -> str:
    ours, theirs = (" ".join(f"{rate:.1f}" for rate in rates) for rates in (duel.ours, duel.theirs))
    return f"{what}: {duel.ratio:.3f} ({ours} against {theirs} tokens/s, spread {duel.spread:.0%})"
