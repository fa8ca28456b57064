"""The limits of a request's fields, each at its edges."""

from typing import Any

import pytest

from burstgate_decode.engine.request import SpeculationChoice
from burstgate_decode.validation import TENANT_KEY, GenerateLimits, checked, tenant_of
from burstgate_runtime.faults import Fault, FaultKind


def refused(fields: dict[str, Any]) -> Fault:
    with pytest.raises(Fault) as caught:
        checked(GenerateLimits, fields)
    return caught.value


@pytest.mark.parametrize(
    ("path", "good", "bad"),
    [
        ("sampling.temperature", [0.0, 10.0], [-0.001, 10.001, float("nan"), float("inf"), -float("inf")]),
        ("sampling.top_p", [1e-9, 1.0], [0.0, 1.001, float("nan")]),
        ("sampling.top_k", [0, 2**31 - 1], [-1]),
        ("sampling.min_p", [0.0, 0.999], [1.0, -0.1, float("nan")]),
        ("sampling.repetition_penalty", [0.001, 10.0], [0.0, 10.1, float("inf")]),
        ("sampling.presence_penalty", [-2.0, 2.0], [-2.1, 2.1, float("nan")]),
        ("sampling.frequency_penalty", [-2.0, 2.0], [-2.1, 2.1]),
        ("sampling.seed", [0, 2**64 - 1], [-1, 2**64]),
        ("stop.strings", [[], ["a"] * 16], [["a"] * 17]),
        ("stop.token_ids", [[], [0] * 64], [[0] * 65]),
        ("speculation.max_draft_width", [0, 2, 64], [-1, 65]),
        ("max_tokens", [1, 1_000_000], [0, -1, 1_000_001]),
        ("logprobs", [0, 20], [-1, 21]),
        ("n", [0, 1, 8], [-1, 9]),
        ("model", ["", "m" * 256], ["m" * 257]),
    ],
)
def test_a_field_is_taken_up_to_its_limit_and_named_beyond_it(path: str, good: list[Any], bad: list[Any]) -> None:
    def fields(value: Any) -> dict[str, Any]:
        *outer, name = path.split(".")
        return {outer[0]: {name: value}} if outer else {name: value}

    for value in good:
        checked(GenerateLimits, fields(value))
    for value in bad:
        fault = refused(fields(value))
        assert (fault.kind, fault.reason) == (FaultKind.INVALID_ARGUMENT, "INVALID_FIELD")
        assert [violation.field for violation in fault.violations] == [path]
        assert ", got " in fault.violations[0].description
        assert path in fault.message


@pytest.mark.parametrize("text", ["a" * 256, "ü" * 128, "🎉" * 64])
def test_a_stop_string_is_measured_in_bytes(text: str) -> None:
    assert checked(GenerateLimits, {"stop": {"strings": [text]}}).stop.strings == [text]
    violation = refused({"stop": {"strings": ["x", text + text[0]]}}).violations[0]
    assert violation.field == "stop.strings[1]"
    assert "at most 256 bytes" in violation.description


def test_a_bias_is_named_by_its_token() -> None:
    fault = refused({"sampling": {"logit_bias": {5: 0.0, 49151: 100.5}}})
    assert [violation.field for violation in fault.violations] == ["sampling.logit_bias[49151]"]


def test_every_violation_is_found_at_once() -> None:
    fault = refused({"n": 9, "max_tokens": 0, "stop": {"strings": [""]}})
    assert {violation.field for violation in fault.violations} == {"n", "max_tokens", "stop.strings[0]"}


def test_what_was_given_is_shown_shortened() -> None:
    description = refused({"model": "secret" * 100}).violations[0].description
    assert len(description) < 160


@pytest.mark.parametrize("mode", [9, -1, "on"])
def test_a_mode_outside_the_contract_is_refused(mode: object) -> None:
    assert refused({"speculation": {"mode": mode}}).violations[0].field == "speculation.mode"


@pytest.mark.parametrize("priority", [9, 2, "HIGH"])
def test_a_priority_outside_the_contract_is_refused(priority: object) -> None:
    (violation,) = refused({"priority": priority}).violations
    assert violation.field == "priority"
    assert violation.description == f"must be one of LOW, NORMAL, HIGH, got {priority!r}"


def test_a_call_without_a_tenant_is_of_the_one_that_all_such_share() -> None:
    assert tenant_of([("x-request-id", "a"), ("x-burstgate-tenant-of", "b")]) == ""


@pytest.mark.parametrize("name", ["a", "x" * 64, "Team 7 / #~", " "])
def test_a_tenant_of_printable_characters_is_taken_as_it_is(name: str) -> None:
    assert tenant_of([("x-request-id", "a"), (TENANT_KEY, name)]) == name


@pytest.mark.parametrize("values", [[""], ["x" * 65], ["caf\u00e9"], ["a\tb"], ["a\n"], [b"a"], ["a", "a"]])
def test_any_other_tenant_is_refused_with_the_key_and_the_limit(values: list[str | bytes]) -> None:
    with pytest.raises(Fault) as caught:
        tenant_of([(TENANT_KEY, value) for value in values])
    assert caught.value.kind is FaultKind.INVALID_ARGUMENT
    (violation,) = caught.value.violations
    assert violation.field == "x-burstgate-tenant"
    assert "1 to 64 printable ASCII" in violation.description
    assert len(violation.description) < 160


def test_defaults_are_those_of_the_contract() -> None:
    limits = checked(GenerateLimits, {})
    params = limits.sampling.params()
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.0, 1.0, 0, 0.0)
    assert (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1.0, 0.0, 0.0)
    assert limits.speculation.mode is SpeculationChoice.AUTO
    assert (limits.max_tokens, limits.logprobs, limits.stop.ignore_eos) == (None, None, False)


def test_a_missing_seed_is_drawn_anew_each_time_and_a_given_one_kept() -> None:
    drawn = {checked(GenerateLimits, {}).sampling.params().seed for _ in range(8)}
    assert len(drawn) == 8
    assert checked(GenerateLimits, {"sampling": {"seed": 0}}).sampling.params().seed == 0


def test_the_seeds_of_n_answers_wrap_around() -> None:
    params = checked(GenerateLimits, {"sampling": {"seed": 2**64 - 1}}).sampling.params()
    assert [params.for_answer(index).seed for index in range(3)] == [2**64 - 1, 0, 1]


def test_numbers_too_small_for_the_engine_become_the_nearest_it_can_use() -> None:
    tiny = {"temperature": 1e-300, "top_p": 1e-300, "repetition_penalty": 5e-324}
    params = checked(GenerateLimits, {"sampling": tiny}).sampling.params()
    assert (params.temperature, params.top_p, params.repetition_penalty) == (0.0, 1e-30, 1e-30)
    small = {"temperature": 1e-6, "top_p": 1e-6, "repetition_penalty": 1e-6}
    params = checked(GenerateLimits, {"sampling": small}).sampling.params()
    assert (params.temperature, params.top_p, params.repetition_penalty) == (1e-6, 1e-6, 1e-6)
