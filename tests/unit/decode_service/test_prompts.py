"""Prompts become tokens, with the default target's own tokeniser and no model."""

import os
from dataclasses import replace
from typing import Any

import pytest
from mlx_lm.tokenizer_utils import load as load_tokenizer

from burstgate_decode.models.default_pair import default_models_cache, prepare_default_pair
from burstgate_decode.models.target import Target
from burstgate_decode.prompts import (
    ROLES,
    Chat,
    Prompt,
    RawText,
    TokenIds,
    check_biased_ids,
    check_room,
    check_token_ids,
    tokenize,
)
from burstgate_runtime.faults import Fault, FaultKind


@pytest.fixture(scope="module")
def target() -> Target:
    folder = prepare_default_pair(default_models_cache(os.environ), report=lambda *_: None).target
    tokenizer: Any = load_tokenizer(folder)
    return Target(
        model=None,  # prompts never touch it
        tokenizer=tokenizer,
        name="smollm2",
        path=folder,
        fingerprint="",
        model_type="llama",
        dtype="float32",
        vocab_size=49152,
        context_length=8192,
        eos_token_ids=frozenset({2}),
        has_chat_template=True,
        split=None,
    )


def chat(*messages: tuple[str, str], system: str = "", **variables: object) -> Chat:
    return Chat(messages, system, variables)


def refused(target: Target, prompt: Prompt) -> Fault:
    with pytest.raises(Fault) as caught:
        tokenize(target, prompt)
    return caught.value


def text_of(target: Target, prompt: Prompt) -> str:
    return str(target.tokenizer.decode(list(tokenize(target, prompt))))


def test_a_conversation_ends_with_the_opening_of_an_answer(target: Target) -> None:
    said = text_of(target, chat(("user", "a"), ("assistant", "b"), ("user", "c")))
    assert said.endswith(
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
        "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_system_text_comes_first(target: Target) -> None:
    one = tokenize(target, chat(("user", "a"), system="s"))
    assert one == tokenize(target, chat(("system", "s"), ("user", "a")))
    assert text_of(target, chat(("user", "a"), system="s")).startswith("<|im_start|>system\ns<|im_end|>")


@pytest.mark.parametrize("role", ROLES)
def test_every_role_of_the_contract_is_taken(target: Target, role: str) -> None:
    assert f"<|im_start|>{role}\nhello" in text_of(target, chat((role, "hello")))


def test_text_is_taken_as_it_is(target: Target) -> None:
    for text in (" leading space", "<|im_start|>user\nhi", "line\n\n\ttabs", "🎉é世"):
        assert text_of(target, RawText(text)) == text


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        (chat(), "chat.messages"),
        (RawText(""), "text"),
        (TokenIds(()), "tokens.ids"),
        (TokenIds((1, 49152)), "tokens.ids[1]"),
        (chat(("user", "a"), ("", "b")), "chat.messages[1].role"),
        (chat(("system", "a"), system="b"), "chat.system"),
        (chat(("user", "a"), return_dict=True), "chat.chat_template_kwargs[return_dict]"),
        (chat(("user", "a"), add_generation_prompt=False), "chat.chat_template_kwargs[add_generation_prompt]"),
        (chat(("user", "a"), continue_final_message=True), "chat.chat_template_kwargs[continue_final_message]"),
        (chat(("user", "a"), max_length=1), "chat.chat_template_kwargs[max_length]"),
        (chat(("user", "a"), return_tensors="np"), "chat.chat_template_kwargs[return_tensors]"),
        (chat(("user", "a"), conversation="x"), "chat.chat_template_kwargs[conversation]"),
        (chat(("user", "a"), messages=["x"]), "chat"),
    ],
)
def test_a_prompt_that_cannot_be_used_names_its_field(target: Target, prompt: Prompt, field: str) -> None:
    fault = refused(target, prompt)
    assert fault.kind is FaultKind.INVALID_ARGUMENT
    assert [violation.field for violation in fault.violations] == [field]


def test_variables_of_the_template_and_unknown_ones_are_taken(target: Target) -> None:
    plain = tokenize(target, chat(("user", "a")))
    assert tokenize(target, chat(("user", "a"), enable_thinking=True, anything={"x": [1.0]})) == plain
    assert tokenize(target, chat(("user", "a"), tools=[], documents=None)) == plain


def test_without_a_template_a_conversation_is_refused_and_text_is_not(target: Target) -> None:
    bare = replace(target, has_chat_template=False)
    assert refused(bare, chat(("user", "a"))).reason == "NO_CHAT_TEMPLATE"
    assert tokenize(bare, RawText("a"))


def test_a_prompt_must_leave_room_for_one_token(target: Target) -> None:
    check_room(target, range(8191))
    with pytest.raises(Fault, match="at most 8191 tokens for this model, got 8192"):
        check_room(target, range(8192))


def test_token_ids_are_checked_at_both_ends_and_named(target: Target) -> None:
    check_token_ids(target, "stop.token_ids", [0, 49151])
    check_biased_ids(target, [0, 49151])
    with pytest.raises(Fault, match=r"stop\.token_ids\[1\] must be below 49152, got 49152"):
        check_token_ids(target, "stop.token_ids", [0, 49152])
    with pytest.raises(Fault, match=r"sampling\.logit_bias\[60000\]"):
        check_biased_ids(target, [0, 60000])
