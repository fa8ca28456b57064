"""Requests and events across the border: nothing is lost and nothing is invented."""

import pytest

from burstgate.decode.v1 import decode_pb2
from burstgate.policy.v1 import policy_pb2
from burstgate_decode import wire
from burstgate_decode.engine.request import (
    Completion,
    Delta,
    Divergence,
    Failure,
    FinishReason,
    Priority,
    SpeculationChoice,
    SpeculationStats,
    Timings,
    TokenLogprobs,
)
from burstgate_decode.serving import LinkState
from burstgate_decode.validation import GenerateLimits, checked
from burstgate_policy.core.types import Mode, Reason
from burstgate_runtime.listen import parse_listen


def completion(**changes: object) -> Completion:
    fields: dict[str, object] = {
        "index": 2,
        "text": "",
        "finish_reason": FinishReason.LENGTH,
        "stop_string": None,
        "stop_token_id": None,
        "prompt_tokens": 7,
        "cached_prompt_tokens": 6,
        "completion_tokens": 5,
        "timings": Timings(1.0, 2.0, 2000.0, 4.0, 2005.0),
        "speculation": SpeculationStats(),
        "seed": 2**64 - 1,
    }
    return Completion(**{**fields, **changes})  # type: ignore[arg-type]


def test_only_fields_that_were_set_are_taken_from_a_request() -> None:
    assert checked(GenerateLimits, wire.generate_fields(decode_pb2.GenerateRequest())) == GenerateLimits()
    zeros = decode_pb2.GenerateRequest(
        sampling=decode_pb2.SamplingOptions(temperature=0.0, top_k=0, seed=0), logprobs=0, max_tokens=0
    )
    fields = wire.generate_fields(zeros)
    assert fields["sampling"] == {"temperature": 0.0, "top_k": 0, "seed": 0, "logit_bias": {}}
    assert (fields["logprobs"], fields["max_tokens"]) == (0, 0)


def test_every_option_of_a_request_arrives() -> None:
    request = decode_pb2.GenerateRequest(
        model="m",
        n=3,
        max_tokens=9,
        logprobs=2,
        priority=decode_pb2.PRIORITY_HIGH,
        sampling=decode_pb2.SamplingOptions(
            temperature=0.5,
            top_p=0.9,
            top_k=40,
            min_p=0.1,
            repetition_penalty=1.1,
            presence_penalty=0.2,
            frequency_penalty=-0.3,
            logit_bias={7: -1.5},
            seed=2**64 - 1,
        ),
        stop=decode_pb2.StopOptions(strings=["x"], token_ids=[3], ignore_eos=True),
        speculation=decode_pb2.SpeculationOptions(mode=decode_pb2.SPECULATION_MODE_ON, max_draft_width=4),
    )
    limits = checked(GenerateLimits, wire.generate_fields(request))
    sampling = limits.sampling.model_dump()
    for field in decode_pb2.SamplingOptions.DESCRIPTOR.fields:
        expected = getattr(request.sampling, field.name)
        assert sampling[field.name] == (dict(expected) if field.name == "logit_bias" else expected)
    assert (limits.model, limits.n, limits.max_tokens, limits.logprobs) == ("m", 3, 9, 2)
    assert limits.priority is Priority.HIGH
    assert (limits.stop.strings, limits.stop.token_ids, limits.stop.ignore_eos) == (["x"], [3], True)
    assert (limits.speculation.mode, limits.speculation.max_draft_width) == (SpeculationChoice.ON, 4)


def test_an_unset_priority_means_normal() -> None:
    assert checked(GenerateLimits, wire.generate_fields(decode_pb2.GenerateRequest())).priority is Priority.NORMAL


@pytest.mark.parametrize("mode", [0, decode_pb2.SPECULATION_MODE_AUTO])
def test_an_unset_mode_means_auto(mode: int) -> None:
    request = decode_pb2.GenerateRequest()
    request.speculation.mode = mode  # type: ignore[assignment]
    assert wire.generate_fields(request)["speculation"]["mode"] is SpeculationChoice.AUTO


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("reason", Reason)
def test_every_mode_and_reason_of_the_policy_has_its_place_in_a_delta(mode: Mode, reason: Reason) -> None:
    event = Delta(
        1, "hé", (5, 6), (True, False), 3, mode, 4, reason, "why", (TokenLogprobs(-0.5, ((5, -0.5), (9, -1.0))),)
    )
    message = wire.delta(event)
    assert policy_pb2.BurstMode.Name(message.mode) == f"BURST_MODE_{mode.name}"
    assert policy_pb2.GrantReason.Name(message.reason) == f"GRANT_REASON_{reason.name}"
    assert (message.index, message.text, list(message.token_ids), list(message.drafted)) == (
        1, "hé", [5, 6], [True, False],
    )  # fmt: skip
    assert (message.round, message.draft_width, message.explanation) == (3, 4, "why")
    assert [(one.token_id, one.logprob) for one in message.logprobs[0].top] == [(5, -0.5), (9, -1.0)]


def step_delta(index: int, text: str) -> Delta:
    return Delta(index, text, (5,), (False,), 3, Mode.PLAIN, 1, Reason.GATE_PLAIN, "")


@pytest.mark.parametrize("grouped", [False, True])
def test_a_steps_deltas_come_before_its_completions_and_together_where_that_was_asked(grouped: bool) -> None:
    step = [step_delta(0, "a"), step_delta(2, "b"), completion(text="c"), step_delta(1, "d")]
    *first, last = wire.responses([*step, Failure(3, RuntimeError())], grouped=grouped)
    assert last.completion.index == 2
    deltas = first[0].deltas.deltas if grouped else [one.delta for one in first]
    assert len(first) == (1 if grouped else 4)
    assert [(delta.index, delta.text) for delta in deltas] == [(0, "a"), (2, "b"), (2, "c"), (1, "d")]


def test_a_delta_that_comes_alone_is_no_group() -> None:
    (alone,) = wire.responses([step_delta(1, "a")], grouped=True)
    assert alone.WhichOneof("event") == "delta"


def test_a_completion_tells_rates_and_means() -> None:
    stats = SpeculationStats(
        rounds=2,
        plain_steps=1,
        proposed=6,
        accepted=3,
        redecided=3,
        diverged=1,
        divergences=[Divergence(7, 11, 12, 0.25)],
        accepted_by_position=[2, 1],
        rounds_by_draft_width={8: 1, 4: 1},
        bursts={(Mode.SPECULATIVE, Reason.GATE_SPECULATIVE): 2, (Mode.PLAIN, Reason.GATE_PLAIN): 1},
        explanation="because",
    )
    message = wire.completion(completion(speculation=stats))
    assert message.timings.tokens_per_second == 2.0
    assert message.speculation.mean_accepted_length == 1.5
    assert [(count.draft_width, count.rounds) for count in message.speculation.draft_widths] == [(4, 1), (8, 1)]
    assert sum(count.bursts for count in message.speculation.bursts) == 3
    (divergence,) = message.speculation.divergences
    assert (message.speculation.redecided, message.speculation.diverged) == (3, 1)
    assert (divergence.position, divergence.shared_token_id, divergence.token_id, divergence.margin) == (
        7,
        11,
        12,
        0.25,
    )
    assert (message.seed, message.index) == (2**64 - 1, 2)
    assert message.WhichOneof("matched_stop") is None


def test_a_single_token_has_no_rate_and_no_rounds_no_mean() -> None:
    message = wire.completion(completion(completion_tokens=1, timings=Timings(0.0, 1.0, 0.0, 1.0, 1.0)))
    assert message.timings.tokens_per_second == 0.0
    assert message.speculation.mean_accepted_length == 0.0


def test_the_stop_that_matched_is_told_and_only_that() -> None:
    string = wire.completion(completion(finish_reason=FinishReason.STOP_STRING, stop_string="x"))
    assert (string.WhichOneof("matched_stop"), string.stop_string) == ("stop_string", "x")
    for reason in (FinishReason.EOS, FinishReason.STOP_TOKEN):
        token = wire.completion(completion(finish_reason=reason, stop_token_id=0))
        assert (token.WhichOneof("matched_stop"), token.stop_token_id) == ("stop_token_id", 0)


def test_a_link_without_an_address_is_empty_and_one_that_was_never_asked_has_its_address() -> None:
    address = parse_listen("0.0.0.0:7")
    assert wire.policy_link(None, None) == policy_link()
    assert wire.policy_link(address, None) == policy_link(address="127.0.0.1:7")
    assert wire.policy_link(address, LinkState(True, 1, 2, 3)) == policy_link(
        address="127.0.0.1:7", connected=True, grants=1, fallbacks=2, dropped_steps=3
    )


def policy_link(**fields: object) -> decode_pb2.PolicyLink:
    return decode_pb2.PolicyLink(**fields)  # type: ignore[arg-type]
