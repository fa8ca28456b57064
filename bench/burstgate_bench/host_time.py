"""What a step costs around the arithmetic: the engine's own work, on a target that computes next to nothing.

The target has one layer of 32 numbers, so a step's time is the loop's, the choice of tokens, their text and their
delivery, and what MLX itself needs to run one layer: an upper bound. Imports mlx: install the BLAS first.
"""

import statistics
from dataclasses import replace

import mlx.core as mx
from mlx_lm.models import llama

from burstgate_bench.lab import ask_together
from burstgate_decode.engine.engine import Engine, Pairing
from burstgate_decode.engine.grants import StaticGrants
from burstgate_decode.engine.limits import EngineLimits
from burstgate_decode.engine.request import AnswerRequest, SpeculationChoice
from burstgate_decode.engine.stepper import GuardMargins
from burstgate_decode.models.target import Target, split_model
from burstgate_decode.startup import clock_ms
from burstgate_policy.core.types import LaneCapabilities

_SIZE = 32
_VOCABULARY = 256
_TOKENS = 400
_PROMPT = tuple(range(1, 17))
_SETTLED_STEPS = 20


def host_ms(tokenizer_of: Target, rows: int) -> float:
    """Median milliseconds of a plain step of so many rows; `tokenizer_of` is the target whose tokenizer is used."""

    def load() -> Pairing:
        args = llama.ModelArgs("llama", _SIZE, 1, _SIZE, 2, 1e-5, _VOCABULARY, num_key_value_heads=1)
        model = llama.Model(args)
        mx.eval(model.parameters())
        split = split_model(model, _VOCABULARY)
        tiny = replace(
            tokenizer_of,
            model=model,
            vocab_size=_VOCABULARY,
            eos_token_ids=frozenset(),
            split=split,
            shares_forwards=True,
        )
        return Pairing(tiny, None, 1, GuardMargins(), StaticGrants(LaneCapabilities(True, rows, "", 0), [], 1))

    engine = Engine(load, EngineLimits(max_active_rows=rows), clock_ms)
    engine.start()
    try:
        engine.wait_loaded()
        requests = [
            AnswerRequest("host", at, _PROMPT, _TOKENS, speculation=SpeculationChoice.OFF) for at in range(rows)
        ]
        answers = ask_together(engine, requests)
        return statistics.median(step.ms for step in answers[0].steps[_SETTLED_STEPS:])
    finally:
        engine.stop()
