"""Proto messages from domain values and back, field by field. Pure and total."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from google.protobuf.message import Message

from burstgate.decode.v1 import decode_pb2
from burstgate.policy.v1 import policy_pb2
from burstgate_decode.engine.request import (
    Completion,
    Delta,
    Event,
    FinishReason,
    Priority,
    SpeculationChoice,
    SpeculationStats,
    Timings,
    TokenLogprobs,
)
from burstgate_decode.serving import LinkState, Serving
from burstgate_policy.core.types import Mode, Reason
from burstgate_runtime.listen import Listen

_CHOICES = {
    decode_pb2.SPECULATION_MODE_UNSPECIFIED: SpeculationChoice.AUTO,
    decode_pb2.SPECULATION_MODE_AUTO: SpeculationChoice.AUTO,
    decode_pb2.SPECULATION_MODE_ON: SpeculationChoice.ON,
    decode_pb2.SPECULATION_MODE_OFF: SpeculationChoice.OFF,
}

_PRIORITIES = {
    decode_pb2.PRIORITY_UNSPECIFIED: Priority.NORMAL,
    decode_pb2.PRIORITY_LOW: Priority.LOW,
    decode_pb2.PRIORITY_NORMAL: Priority.NORMAL,
    decode_pb2.PRIORITY_HIGH: Priority.HIGH,
}

# Looked up by name, so that a name the contract lacks fails at import. The generated types of enum fields are
# classes that do not exist at run time, hence Any.
_BURST_MODES: dict[Mode, Any] = {mode: policy_pb2.BurstMode.Value(f"BURST_MODE_{mode.name}") for mode in Mode}
_GRANT_REASONS: dict[Reason, Any] = {
    reason: policy_pb2.GrantReason.Value(f"GRANT_REASON_{reason.name}") for reason in Reason
}
_FINISH_REASONS: dict[FinishReason, Any] = {
    reason: decode_pb2.FinishReason.Value(f"FINISH_REASON_{reason.name}") for reason in FinishReason
}


def generate_fields(request: decode_pb2.GenerateRequest) -> dict[str, Any]:
    """The fields that were set, as plain values for validation."""
    speculation = request.speculation
    fields = {
        "model": request.model,
        "n": request.n,
        "priority": _PRIORITIES.get(request.priority, request.priority),
        "sampling": _set_fields(request.sampling) | {"logit_bias": dict(request.sampling.logit_bias)},
        "stop": {
            "strings": list(request.stop.strings),
            "token_ids": list(request.stop.token_ids),
            "ignore_eos": request.stop.ignore_eos,
        },
        "speculation": {
            "mode": _CHOICES.get(speculation.mode, speculation.mode),
            "max_draft_width": speculation.max_draft_width,
        },
    }
    for name in ("max_tokens", "logprobs"):
        if request.HasField(name):
            fields[name] = getattr(request, name)
    return fields


def responses(events: Sequence[Event], *, grouped: bool) -> Iterator[decode_pb2.GenerateResponse]:
    """The messages of what one step added to a request's answers; a failure has none. An answer's deltas come before
    its completion. `grouped`: several deltas are one message.
    """
    deltas: list[decode_pb2.GenerateDelta] = []
    completions: list[decode_pb2.GenerateCompletion] = []
    for event in events:
        match event:
            case Delta():
                deltas.append(delta(event))
            case Completion():
                if event.text:
                    deltas.append(tail(event))
                completions.append(completion(event))
    if grouped and len(deltas) > 1:
        yield decode_pb2.GenerateResponse(deltas=decode_pb2.GenerateDeltas(deltas=deltas))
    else:
        yield from (decode_pb2.GenerateResponse(delta=one) for one in deltas)
    yield from (decode_pb2.GenerateResponse(completion=one) for one in completions)


def delta(event: Delta) -> decode_pb2.GenerateDelta:
    """One step's message."""
    return decode_pb2.GenerateDelta(
        index=event.index,
        text=event.text,
        token_ids=event.token_ids,
        drafted=event.drafted,
        round=event.round,
        mode=_BURST_MODES[event.mode],
        draft_width=event.draft_width,
        reason=_GRANT_REASONS[event.reason],
        explanation=event.explanation,
        logprobs=[_logprobs(entry) for entry in event.logprobs],
    )


def tail(event: Completion) -> decode_pb2.GenerateDelta:
    """The text that was held back until the answer's end."""
    return decode_pb2.GenerateDelta(index=event.index, text=event.text)


def completion(event: Completion) -> decode_pb2.GenerateCompletion:
    """The message that ends an answer."""
    message = decode_pb2.GenerateCompletion(
        index=event.index,
        finish_reason=_FINISH_REASONS[event.finish_reason],
        usage=decode_pb2.Usage(
            prompt_tokens=event.prompt_tokens,
            completion_tokens=event.completion_tokens,
            cached_prompt_tokens=event.cached_prompt_tokens,
        ),
        timings=_timings(event.timings, event.completion_tokens),
        speculation=_stats(event.speculation),
        seed=event.seed,
    )
    if event.stop_string is not None:
        message.stop_string = event.stop_string
    elif event.finish_reason in (FinishReason.EOS, FinishReason.STOP_TOKEN) and event.stop_token_id is not None:
        message.stop_token_id = event.stop_token_id
    return message


def model(serving: Serving) -> decode_pb2.GetModelResponse:
    """The served pairing."""
    target, drafter, exactness = serving.target, serving.drafter, serving.exactness
    return decode_pb2.GetModelResponse(
        target=decode_pb2.ModelInfo(
            name=target.name,
            fingerprint=target.fingerprint,
            model_type=target.model_type,
            dtype=target.dtype,
            vocab_size=target.vocab_size,
            context_length=target.context_length,
            eos_token_ids=sorted(target.eos_token_ids),
            has_chat_template=target.has_chat_template,
        ),
        drafter=decode_pb2.DrafterInfo(
            name=drafter.name,
            fingerprint=drafter.fingerprint,
            kind=drafter.kind,
            max_draft_width=serving.draft_width,
        )
        if drafter is not None
        else None,
        hardware=serving.hardware.label,
        backend=serving.hardware.backend,
        blas=serving.blas.name,
        mlx_version=serving.mlx_version,
        exactness=decode_pb2.ExactnessReport(
            bit_equal=exactness.bit_equal,
            positions=exactness.positions,
            max_logit_difference=exactness.max_logit_difference,
            guard_margin=exactness.guard_margin,
            explanation=exactness.explanation,
        ),
        costs=[
            policy_pb2.CostCell(
                width=cell.width,
                draft_width=cell.draft_width,
                depth_tokens=cell.depth_tokens,
                verify_ms=cell.verify_ms,
                draft_ms=cell.draft_ms,
            )
            for cell in serving.costs
        ],
    )


def policy_link(address: Listen | None, link: LinkState | None) -> decode_pb2.PolicyLink:
    """How the policy service is seen from here."""
    if address is None or link is None:
        return decode_pb2.PolicyLink(address=address.target if address else "")
    return decode_pb2.PolicyLink(
        address=address.target,
        connected=link.connected,
        grants=link.grants,
        fallbacks=link.fallbacks,
        dropped_steps=link.dropped_steps,
    )


def _set_fields(message: Message) -> dict[str, Any]:
    """The scalar fields of a message that the sender set."""
    return {
        field.name: value for field, value in message.ListFields() if not field.message_type and not field.is_repeated
    }


def _logprobs(entry: TokenLogprobs) -> decode_pb2.TokenLogprobs:
    return decode_pb2.TokenLogprobs(
        logprob=entry.logprob,
        top=[decode_pb2.TokenLogprob(token_id=token, logprob=logprob) for token, logprob in entry.top],
    )


def _timings(timings: Timings, completion_tokens: int) -> decode_pb2.Timings:
    rate = (completion_tokens - 1) * 1e3 / timings.decode_ms if timings.decode_ms > 0 else 0.0
    return decode_pb2.Timings(
        queue_ms=timings.queue_ms,
        prefill_ms=timings.prefill_ms,
        decode_ms=timings.decode_ms,
        time_to_first_token_ms=timings.time_to_first_token_ms,
        total_ms=timings.total_ms,
        tokens_per_second=rate,
    )


def _stats(stats: SpeculationStats) -> decode_pb2.SpeculationStats:
    return decode_pb2.SpeculationStats(
        rounds=stats.rounds,
        plain_steps=stats.plain_steps,
        proposed=stats.proposed,
        accepted=stats.accepted,
        accepted_by_position=stats.accepted_by_position,
        mean_accepted_length=stats.accepted / stats.rounds if stats.rounds else 0.0,
        draft_widths=[
            decode_pb2.DraftWidthCount(draft_width=width, rounds=rounds)
            for width, rounds in sorted(stats.rounds_by_draft_width.items())
        ],
        bursts=[
            decode_pb2.BurstCount(
                mode=_BURST_MODES[mode],
                reason=_GRANT_REASONS[reason],
                bursts=bursts,
            )
            for (mode, reason), bursts in sorted(stats.bursts.items())
        ],
        explanation=stats.explanation,
        redecided=stats.redecided,
        diverged=stats.diverged,
        divergences=[decode_pb2.Divergence(**asdict(one)) for one in stats.divergences],
    )
