"""The real engine in this process, the real policy service beside it, and mlx-lm on the same target.

Everything that is measured or compared goes through here, so that all arms share one process, one load of
the models, one clock and one definition of a rate. Imports mlx: install the BLAS first.
"""

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from burstgate import PolicyClient, Verdict
from burstgate_bench.answers import Answer, Step
from burstgate_bench.arms import Arm, ArmKind
from burstgate_bench.baseline import Baseline
from burstgate_bench.command import NothingToMeasureError
from burstgate_bench.divergence import Divergence, first_difference, token_at
from burstgate_bench.grpc_host import served
from burstgate_bench.policy_process import policy_process
from burstgate_bench.prompts import PromptCase
from burstgate_decode.config import DecodeSettings
from burstgate_decode.engine.engine import Engine, Pairing
from burstgate_decode.engine.request import AnswerRequest, Completion, Delta, Event, Failure, SpeculationChoice
from burstgate_decode.models.blas import BlasReport
from burstgate_decode.prompts import Chat, RawText, TokenIds, tokenize
from burstgate_decode.serving import Serving
from burstgate_decode.startup import Loaded, clock_ms, load_everything
from burstgate_runtime.settings import load_settings


class Lab:
    """One loaded pairing. Methods block until what they ask for is done."""

    def __init__(
        self, engine: Engine, serving: Serving, policy: PolicyClient, baseline: Baseline, settings: DecodeSettings
    ) -> None:
        self.serving = serving
        self.baseline = baseline
        self._settings = settings
        self._engine = engine
        self._policy = policy

    def tokens_of(self, case: PromptCase) -> tuple[int, ...]:
        """A case as the service would encode it."""
        target = self.serving.target
        if case.messages:
            ids = tokenize(target, Chat(case.messages, "", {}))
        elif case.text:
            ids = tokenize(target, RawText(case.text))
        else:
            ids = tokenize(target, TokenIds(case.token_ids))
        if case.fill_tokens:
            ids = (ids * (case.fill_tokens // len(ids) + 1))[: case.fill_tokens]
        return ids

    def run(self, arm: Arm, prompt: tuple[int, ...], max_tokens: int) -> Answer:
        """One answer of one arm, with nothing beside it."""
        match arm.kind:
            case ArmKind.MLX_LM:
                return self.baseline.mlx_lm(prompt, max_tokens)
            case ArmKind.MLX_LM_ON_OPENBLAS:
                return self.baseline.mlx_lm_on_openblas(prompt, max_tokens)
            case _:
                return self.run_together([(arm, prompt)], max_tokens)[0]

    def run_together(
        self, work: Sequence[tuple[Arm, tuple[int, ...]]], max_tokens: int, *, ignore_eos: bool = False
    ) -> list[Answer]:
        """Answers of the engine's own arms, all submitted at once; each ends where its context does."""
        requests = [
            replace(self._request(place, arm, prompt, max_tokens), ignore_eos=ignore_eos)
            for place, (arm, prompt) in enumerate(work)
        ]
        return ask_together(self._engine, requests)

    def served(self) -> contextlib.AbstractContextManager[str]:
        """Serves the engine over gRPC for the length of the block; gives the address."""
        return served(self._engine, self.serving, self._settings)

    def verdict(self) -> Verdict:
        """What the policy service holds for this pairing."""
        (verdict,) = self._policy.verdicts()
        return verdict

    def compare(
        self, name: str, arm: Arm, prompt: Sequence[int], expected: Sequence[int], got: Sequence[int]
    ) -> Divergence | None:
        """The divergence of an answer from the plain one; None if they are equal."""
        position = first_difference(expected, got)
        if position is None:
            return None
        wanted, found = token_at(expected, position), token_at(got, position)
        return Divergence(
            name,
            arm.label,
            position,
            wanted,
            found,
            self._shown(wanted),
            self._shown(found),
            self.baseline.doubt([*prompt, *expected[:position]], wanted, found),
        )

    def _request(self, index: int, arm: Arm, prompt: tuple[int, ...], max_tokens: int) -> AnswerRequest:
        return AnswerRequest(
            request_id="bench",
            index=index,
            prompt=prompt,
            max_tokens=min(max_tokens, self.serving.target.context_length - len(prompt)),
            speculation=_CHOICES[arm.kind],
            max_draft_width=arm.draft_width,
        )

    def _shown(self, token: int | None) -> str:
        return "" if token is None else str(self.serving.target.tokenizer.decode([token]))


@contextlib.contextmanager
def open_lab(blas: BlasReport, **settings: Any) -> Iterator[Lab]:
    """Loads the pairing that the BURSTGATE_ variables name, and starts a policy service for it.

    `settings` are fields of `DecodeSettings` and win over the variables. Raises `NothingToMeasureError`,
    and what loading raises.
    """
    # The gRPC core reads this when it is first imported, and writes lines in a format of its own.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    loaded: list[Loaded] = []
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(policy_process())
        chosen = load_settings(DecodeSettings, **{**settings, "policy_address": address})

        def load() -> Pairing:
            loaded.append(load_everything(chosen, blas))
            return loaded[0].pairing

        engine = Engine(load, chosen.engine_limits, clock_ms)
        engine.start()
        # Ended in this order: the engine's thread, then the channel that it asks for grants.
        stack.callback(_close, loaded)
        stack.callback(engine.stop)
        engine.wait_loaded()
        serving = loaded[0].serving
        if serving.drafter is None:
            raise NothingToMeasureError(f"there is nothing to compare: {serving.no_drafter_because}")
        baseline = Baseline(serving.target, serving.blas, clock_ms)
        stack.callback(baseline.close)
        policy = stack.enter_context(PolicyClient(address))
        yield Lab(engine, serving, policy, baseline, chosen)


def ask_together(engine: Engine, requests: Sequence[AnswerRequest]) -> list[Answer]:
    """The answers to requests that are submitted at once; blocks until all have ended."""
    collectors = [_Collector() for _ in requests]
    engine.submit(list(zip(requests, (collector.take for collector in collectors), strict=True)))
    return [collector.answer() for collector in collectors]


def _close(loaded: list[Loaded]) -> None:
    for one in loaded:
        one.close()


_CHOICES = {
    ArmKind.CLASSIC: SpeculationChoice.OFF,
    ArmKind.FIXED: SpeculationChoice.ON,
    ArmKind.STOPPING: SpeculationChoice.ON,
    ArmKind.AUTO: SpeculationChoice.AUTO,
    ArmKind.AUTO_AFTER_CHANGE: SpeculationChoice.AUTO,
}


class _Collector:
    """Takes one answer's events on the engine's thread and hands the answer to the caller's."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._deliveries: list[tuple[float, int]] = []
        self._steps: list[Step] = []
        self._end: Completion | Failure | None = None
        self._ended = threading.Event()

    def take(self, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case Delta(token_ids=ids, draft_width=draft_width):
                    now_ms = clock_ms()
                    if self._deliveries:
                        self._steps.append(Step(draft_width, len(ids), now_ms - self._deliveries[-1][0]))
                    self._deliveries.append((now_ms, len(ids)))
                    self._tokens.extend(ids)
                case Completion() | Failure():
                    self._end = event
                    self._ended.set()

    def answer(self) -> Answer:
        self._ended.wait()
        match self._end:
            case Completion(speculation=stats):
                return Answer(
                    tokens=tuple(self._tokens),
                    first_delivery_tokens=self._deliveries[0][1],
                    decode_ms=self._deliveries[-1][0] - self._deliveries[0][0],
                    rounds=stats.rounds,
                    proposed=stats.proposed,
                    accepted=stats.accepted,
                    plain_steps=stats.plain_steps,
                    bursts={f"{mode.name} {reason.name}": count for (mode, reason), count in stats.bursts.items()},
                    deliveries=tuple(self._deliveries),
                    steps=tuple(self._steps),
                )
            case Failure(error=error):
                raise error
            case None:
                raise RuntimeError("an answer ended without saying how")
