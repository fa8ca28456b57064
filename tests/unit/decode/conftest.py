"""The default pair, loaded once in the test process, and batches of rows that are stepped by hand."""

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pytest

from burstgate_decode.models.blas import BlasReport, install_blas

# Before anything imports mlx.
BLAS: BlasReport = install_blas()

import mlx.core as mx  # noqa: E402
from mlx.utils import tree_flatten  # noqa: E402
from mlx_lm.models import llama  # noqa: E402
from mlx_lm.utils import load_tokenizer  # noqa: E402

from burstgate_decode.drafters.base import Drafter  # noqa: E402
from burstgate_decode.drafters.mtp_head import MtpHead, MtpHeadConfig, load_mtp_head  # noqa: E402
from burstgate_decode.engine.batch import Batch  # noqa: E402
from burstgate_decode.engine.prefix_cache import PrefixCache  # noqa: E402
from burstgate_decode.engine.request import AnswerRequest, Clock, Completion, Event, SamplingParams, SpeculationChoice  # noqa: E402
from burstgate_decode.engine.rounds import StepResult, prefill_chunk  # noqa: E402
from burstgate_decode.engine.row import Row, StepLabel, Ticket  # noqa: E402
from burstgate_decode.engine.stepper import GuardMargins, Stepper  # noqa: E402
from burstgate_decode.engine.stopping import Stopping  # noqa: E402
from burstgate_decode.models.default_pair import default_models_cache, prepare_default_pair  # noqa: E402
from burstgate_decode.models.fused_kernels import use_native_kernels  # noqa: E402
from burstgate_decode.models.loading import load_target  # noqa: E402
from burstgate_decode.models.target import Target, split_model, takes_ragged_cache  # noqa: E402
from burstgate_policy.core.types import Mode, Reason  # noqa: E402

WIDEST = 8


def clock_ms() -> float:
    return time.perf_counter() * 1e3


@dataclass(frozen=True)
class Pair:
    target: Target
    drafter: Drafter | None


@pytest.fixture(scope="session")
def pair() -> Pair:
    """The default pair, with rows that do not depend on each other's number."""
    folders = prepare_default_pair(default_models_cache(os.environ), report=lambda *_: None)
    # Before the model is loaded, as the service does: what is done to a model depends on its bits.
    BLAS.set_exact_rows(True)
    use_native_kernels(default_models_cache(os.environ).parent / "kernels")
    target = load_target(str(folders.target))
    return Pair(target, load_mtp_head(folders.drafter, target))


TINY_VOCAB = 97


@pytest.fixture(scope="session")
def tiny_pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A random Llama and a random drafter, for what takes thousands of steps. Its text means nothing."""
    folders = prepare_default_pair(default_models_cache(os.environ), report=lambda *_: None)
    mx.random.seed(6)
    sizes = {"num_key_value_heads": 2, "head_dim": 8}
    model = llama.Model(llama.ModelArgs("llama", 32, 2, 48, 4, 1e-5, TINY_VOCAB, **sizes))
    mx.eval(model.parameters())
    target = Target(
        model, load_tokenizer(folders.target), "tiny", folders.target, "tiny", "llama", "float32", TINY_VOCAB, 512,
        frozenset(), False, split_model(model, TINY_VOCAB), takes_ragged_cache(model, TINY_VOCAB),
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("drafter")
    config = {
        **json.loads((folders.drafter / "config.json").read_text()),
        "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48,
        "target_vocab_size": TINY_VOCAB, "draft_vocab_size": TINY_VOCAB,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    weights = dict(tree_flatten(MtpHead(MtpHeadConfig.model_validate(config)).parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), {**weights, "draft_token_ids": mx.arange(TINY_VOCAB)})
    return Pair(target, load_mtp_head(folder, target))


@dataclass
class Driven:
    """A row and everything it sent."""

    row: Row
    events: list[Event]

    @property
    def answer(self) -> list[int]:
        return self.row.tokens[len(self.row.request.prompt) :]

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if not hasattr(event, "error"))

    @property
    def completion(self) -> Completion:
        (last,) = [event for event in self.events if isinstance(event, Completion)]
        return last


class BatchDriver:
    """Steps a batch of the default pair by hand; `batch` is the one that rows join.

    Rounds run their full width unless `stopping` is set, and prompts are read whole unless `prefixes` is.
    """

    def __init__(self, pair: Pair) -> None:
        self.target = pair.target
        self.drafter = pair.drafter
        self.batch = Batch(pair.target, pair.drafter)
        self.stopping: Stopping | None = None
        self.prefixes: PrefixCache | None = None
        self.clock: Clock = clock_ms

    def open(self, request: AnswerRequest, chunk_tokens: int = 256) -> Driven:
        """A row that has joined and read its prompt."""
        events: list[Event] = []
        row = Row(request, Ticket(), events.extend, clock_ms)
        row.admit(self.target, request.speculation is not SpeculationChoice.OFF)
        self.batch.join(row)
        while row.prefill_left:
            if self.prefixes is not None:
                self.prefixes.restore(row)
            prefill_chunk(self.batch, row, chunk_tokens)
            if not row.prefill_left:
                self.batch.start_decoding(row)
        self.keep(row)
        return Driven(row, events)

    def step(
        self,
        draft_width: int | Mapping[int, int],
        margins: GuardMargins = GuardMargins(),  # noqa: B008  (immutable)
        look_ahead: bool = False,
        reason: Reason = Reason.GATE_SPECULATIVE,
        mode: Mode = Mode.SPECULATIVE,
    ) -> StepResult:
        """One step of all rows: of one width, or of the width given for each row by its id. Ended rows leave.

        `mode`: that of the rows that draft.
        """
        stepper = Stepper(self.batch, margins, WIDEST, _raise, self.clock, self.stopping)

        def label(row: Row) -> StepLabel:
            width = draft_width if isinstance(draft_width, int) else draft_width[id(row)]
            return StepLabel(mode if width > 1 else Mode.PLAIN, width, reason, "")

        done = stepper.step(label, lambda: look_ahead)
        for row in [row for row in self.batch.rows if not row.alive]:
            self.keep(row)
            self.batch.leave(row)
        return done

    def run(self, request: AnswerRequest, width_of: Callable[[int], int]) -> Driven:
        """Generates an answer alone; `width_of(step)` is the width of each step."""
        assert not self.batch.rows, "another row is in the batch"
        driven = self.open(request)
        step = 0
        while not driven.row.finished:
            self.step(width_of(step))
            step += 1
        return driven

    def leave(self, driven: Driven) -> None:
        """What a cancel does between two steps."""
        driven.row.ticket.cancel()
        self.keep(driven.row)
        self.batch.leave(driven.row)

    def keep(self, row: Row) -> None:
        """Offers what a row has computed to later ones."""
        if self.prefixes is not None:
            self.prefixes.keep(row)


def _raise(_row: Row, error: Exception) -> None:
    raise error


@pytest.fixture
def rows(pair: Pair) -> BatchDriver:
    return BatchDriver(pair)


@pytest.fixture
def ask(pair: Pair) -> Callable[..., AnswerRequest]:
    """Builds a request from a user's message."""

    def build(message: str, max_tokens: int = 40, **changes: object) -> AnswerRequest:
        messages = [{"role": "user", "content": message}]
        prompt = tuple(pair.target.tokenizer.apply_chat_template(messages, add_generation_prompt=True))
        request = AnswerRequest("test", 0, prompt, max_tokens, SamplingParams(seed=7))
        return replace(request, **changes)  # type: ignore[arg-type]

    return build
