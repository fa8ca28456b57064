"""mlx-lm's own generation and the target's logits, on a thread of their own.

Arrays and streams of MLX belong to the thread that made them, and mlx-lm generates on a stream that is local
to its thread; so everything here runs on one worker thread, which clears its streams before it ends. The
target's weights are shared with the engine: they are evaluated and never written. Run nothing here while
the engine decodes: both would be slow.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import mlx.core as mx
from mlx_lm.generate import BatchGenerator, generation_stream, stream_generate

from burstgate_bench.answers import Answer
from burstgate_bench.divergence import Doubt
from burstgate_decode.engine.request import Clock
from burstgate_decode.models.arrays import as_float
from burstgate_decode.models.blas import BlasReport
from burstgate_decode.models.cpu_attention import original_attention
from burstgate_decode.models.lean_layers import original_layers
from burstgate_decode.models.sequence_cache import cache_arrays
from burstgate_decode.models.table_rope import original_ropes
from burstgate_decode.models.target import Target

_Result = TypeVar("_Result")

# As the engine's own prompt chunks.
_CHUNK_TOKENS = 512


class Baseline:
    """The target without the engine. Any thread may call it."""

    def __init__(self, target: Target, blas: BlasReport, clock: Clock) -> None:
        """`blas` is the one in place."""
        self._target = target
        self._blas = blas
        self._clock = clock
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="baseline")

    def mlx_lm(self, prompt: Sequence[int], max_tokens: int) -> Answer:
        """A greedy answer of `mlx_lm.stream_generate`."""
        return self._thread.submit(self._original, self._stream, prompt, max_tokens).result()

    def mlx_lm_on_openblas(self, prompt: Sequence[int], max_tokens: int) -> Answer:
        """The same on OpenBLAS's products, as mlx-lm would run on it by itself. Its tokens may differ."""
        answer: Answer = self._thread.submit(
            self._original, self._on_openblas, self._stream, prompt, max_tokens
        ).result()
        return answer

    def mlx_lm_batch(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[Answer]:
        """Greedy answers of mlx-lm's `BatchGenerator`, all of exactly `max_tokens`."""
        return self._thread.submit(self._original, self._batch, prompts, max_tokens).result()

    def mlx_lm_batch_on_openblas(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[Answer]:
        """The same on OpenBLAS's products. Its tokens may differ."""
        answers: list[Answer] = self._thread.submit(
            self._original, self._on_openblas, self._batch, prompts, max_tokens
        ).result()
        return answers

    def doubt(self, tokens: Sequence[int], expected: int | None, other: int | None) -> Doubt:
        """How sure the target is of what follows `tokens`."""
        return self._thread.submit(self._doubt, tokens, expected, other).result()

    def close(self) -> None:
        """Ends the thread."""
        self._thread.submit(_leave_mlx).result()
        self._thread.shutdown()

    def _stream(self, prompt: Sequence[int], max_tokens: int) -> Answer:
        tokens: list[int] = []
        times_ms: list[float] = []
        for response in stream_generate(self._target.model, self._target.tokenizer, list(prompt), max_tokens):
            tokens.append(int(response.token))
            times_ms.append(self._clock())
        # It leaves one step behind that nobody reads, which must not run into what is measured next.
        mx.synchronize(generation_stream)
        deliveries = tuple((at, 1) for at in times_ms)
        return Answer(tuple(tokens), 1, times_ms[-1] - times_ms[0], plain_steps=len(tokens), deliveries=deliveries)

    def _batch(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[Answer]:
        generator = BatchGenerator(self._target.model, max_tokens=max_tokens)
        tokens: dict[int, list[int]] = {uid: [] for uid in generator.insert([list(prompt) for prompt in prompts])}
        times_ms: dict[int, list[float]] = {uid: [] for uid in tokens}
        while any(len(row) < max_tokens for row in tokens.values()):
            _, responses = generator.next()
            now = self._clock()
            for response in responses:
                tokens[response.uid].append(int(response.token))
                times_ms[response.uid].append(now)
        generator.close()
        mx.synchronize(generation_stream)
        return [
            Answer(tuple(row), 1, times[-1] - times[0], plain_steps=len(row), deliveries=tuple((at, 1) for at in times))
            for row, times in zip(tokens.values(), times_ms.values(), strict=True)
        ]

    def _original(self, run: Callable[..., _Result], *args: Any) -> _Result:
        """Runs it on the model as mlx-lm loads it."""
        model = self._target.model
        with original_ropes(model), original_attention(model), original_layers(model):
            return run(*args)

    def _on_openblas(self, run: Callable[..., _Result], *args: Any) -> _Result:
        exact = self._blas.exact_rows
        self._blas.set_exact_rows(False)
        try:
            return run(*args)
        finally:
            self._blas.set_exact_rows(exact)

    def _doubt(self, tokens: Sequence[int], expected: int | None, other: int | None) -> Doubt:
        cache = self._target.make_cache()
        before = tokens[:-1]
        for start in range(0, len(before), _CHUNK_TOKENS):
            self._target.advance(mx.array([list(before[start : start + _CHUNK_TOKENS])]), cache)
            mx.eval(cache_arrays(cache))
        logits = self._target.forward(mx.array([[tokens[-1]]]), cache).logits[0, -1].astype(mx.float32)
        highest = mx.sort(logits)[-2:]
        best = as_float(highest[1])

        def deficit(token: int | None) -> float:
            return 0.0 if token is None else best - as_float(logits[token])

        return Doubt(best - as_float(highest[0]), deficit(expected), deficit(other))


def _leave_mlx() -> None:
    mx.synchronize()
    mx.clear_streams()
