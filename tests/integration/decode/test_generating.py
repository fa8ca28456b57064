"""What a client gets for a request: the tokens, the text, and the account of both."""

import concurrent.futures
import time
from typing import Any

import pytest
from google.protobuf.struct_pb2 import Struct
from tests.integration.decode.asking import AUTO, OFF, ON, Decode, ask, check_account, events_of, sampled
from tokenizers import Tokenizer

from burstgate.decode.v1 import decode_pb2
from burstgate.policy.v1 import policy_pb2

GREEDY = decode_pb2.SamplingOptions()
FIXED = {
    OFF: (policy_pb2.BURST_MODE_PLAIN, policy_pb2.GRANT_REASON_REQUEST_OFF),
    ON: (policy_pb2.BURST_MODE_SPECULATIVE, policy_pb2.GRANT_REASON_REQUEST_ON),
}
OURS = {
    policy_pb2.GRANT_REASON_REQUEST_ON,
    policy_pb2.GRANT_REASON_REQUEST_OFF,
    policy_pb2.GRANT_REASON_NO_DRAFTER,
    policy_pb2.GRANT_REASON_INEXACT,
    policy_pb2.GRANT_REASON_UNSPECIFIED,
}


@pytest.mark.parametrize("mode", [OFF, ON, AUTO])
def test_deltas_then_a_completion_whose_account_adds_up(decode: Decode, tokenizer: Tokenizer, mode: Any) -> None:
    answer = decode.answer(ask(mode=mode, max_tokens=24))
    check_account(answer)
    done = answer.done
    eos = set(decode.stub.GetModel(decode_pb2.GetModelRequest(), timeout=30).target.eos_token_ids)
    ended = done.finish_reason == decode_pb2.FINISH_REASON_EOS
    assert (answer.tokens[-1] in eos) == ended
    assert not eos & set(answer.tokens[:-1])
    if ended:
        assert done.stop_token_id == answer.tokens[-1]
    else:
        assert done.finish_reason == decode_pb2.FINISH_REASON_LENGTH
        assert len(answer.tokens) == 24
        assert done.WhichOneof("matched_stop") is None
    assert answer.text == tokenizer.decode(answer.tokens[:-1] if ended else answer.tokens)
    assert done.usage.prompt_tokens == len(decode.token_ids(ask()))
    assert answer.logprobs == []
    stats = done.speculation
    if mode in FIXED:
        assert {(delta.mode, delta.reason) for delta in answer.deltas if delta.token_ids} == {FIXED[mode]}
        assert [count.bursts for count in stats.bursts] == [1]
        assert stats.explanation
    else:
        assert not OURS & {delta.reason for delta in answer.deltas if delta.token_ids}
        begun = [delta.explanation for delta in answer.deltas if delta.explanation]
        assert sum(count.bursts for count in stats.bursts) == len(begun)
        assert answer.deltas[0].explanation
        assert begun[-1] == stats.explanation
    assert (stats.rounds == 0) == (mode == OFF) or mode == AUTO
    assert (stats.proposed == 0) == (stats.rounds == 0)


@pytest.mark.parametrize(
    "sampling",
    [
        GREEDY,
        sampled(top_p=0.9, top_k=50, min_p=0.02),
        sampled(0.7, repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.2, logit_bias={260: 2.0}),
    ],
    ids=["greedy", "filtered", "penalised"],
)
def test_tokens_are_the_same_with_speculation_on_off_auto_and_capped(decode: Decode, sampling: Any) -> None:
    plain = decode.answer(ask(mode=OFF, sampling=sampling))
    for mode, cap in ((ON, 0), (AUTO, 0), (ON, 3), (ON, 2)):
        other = decode.answer(ask(mode=mode, max_draft_width=cap, sampling=sampling))
        assert other.tokens == plain.tokens, (mode, cap)
        assert other.text == plain.text
        assert other.done.finish_reason == plain.done.finish_reason
        check_account(other, cap or 8)
        assert all(count.draft_width <= (cap or 8) for count in other.done.speculation.draft_widths)


def test_n_answers_are_those_of_single_requests_with_the_next_seeds(decode: Decode) -> None:
    three = decode.answers(ask(mode=AUTO, max_tokens=8, n=3, sampling=sampled(1.0, seed=(1 << 64) - 2)))
    assert [answer.done.seed for answer in three] == [(1 << 64) - 2, (1 << 64) - 1, 0]
    for answer in three:
        check_account(answer)
        alone = decode.answer(ask(max_tokens=8, sampling=sampled(1.0, seed=answer.done.seed)))
        assert alone.tokens == answer.tokens
    assert len({tuple(answer.tokens) for answer in three}) > 1


def test_answers_whose_deltas_come_grouped_are_the_same_in_fewer_messages(decode: Decode) -> None:
    fields: dict[str, Any] = {"max_tokens": 12, "n": 3, "sampling": sampled(1.0, seed=5)}
    single = decode.answers(ask(mode=AUTO, **fields))
    together = decode.answers(ask(mode=AUTO, group_deltas=True, **fields))
    assert [(one.text, one.tokens) for one in together] == [(one.text, one.tokens) for one in single]
    messages = list(decode.stub.Generate(ask(mode=OFF, group_deltas=True, **fields)))
    # All answers read the same prompt and then step together; one that ends may have a delta more, of text held back.
    assert max(len(events_of(message)) for message in messages) >= 3
    assert sum(message.WhichOneof("event") == "completion" for message in messages) == 3
    alone = ask(mode=OFF, max_tokens=4, group_deltas=True)
    assert {one.WhichOneof("event") for one in decode.stub.Generate(alone)} == {"delta", "completion"}


def test_a_seed_that_was_drawn_is_told_and_gives_the_same_tokens_again(decode: Decode) -> None:
    hot = decode_pb2.SamplingOptions(temperature=1.0)
    one, two = (decode.answer(ask(max_tokens=8, sampling=hot)) for _ in range(2))
    assert one.done.seed != two.done.seed
    again = decode.answer(ask(max_tokens=8, sampling=sampled(1.0, seed=one.done.seed)))
    assert again.tokens == one.tokens


def test_every_form_of_a_prompt_gives_the_same_tokens(decode: Decode, tokenizer: Tokenizer) -> None:
    asked = ask("Name a colour.", system="Be brief.", max_tokens=6)
    ids = decode.token_ids(asked)
    rendered = tokenizer.decode(ids, skip_special_tokens=False)
    assert rendered == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nName a colour.<|im_end|>\n<|im_start|>assistant\n"
    )
    messages = [
        decode_pb2.ChatMessage(role="system", content="Be brief."),
        decode_pb2.ChatMessage(role="user", content="Name a colour."),
    ]
    forms = {
        "system in a field": asked,
        "system message": ask(chat=decode_pb2.ChatPrompt(messages=messages), max_tokens=6),
        "text": ask(text=rendered, max_tokens=6),
        "tokens": ask(tokens=decode_pb2.TokenPrompt(ids=ids), max_tokens=6),
    }
    assert all(decode.token_ids(form) == ids for form in forms.values())
    answers = decode.at_once(list(forms.values()))
    assert len({tuple(answer.tokens) for answer in answers}) == 1
    assert {answer.done.usage.prompt_tokens for answer in answers} == {len(ids)}


def test_raw_text_is_not_wrapped_in_a_template(decode: Decode, tokenizer: Tokenizer) -> None:
    text = "Grüße, 世界 🎉: 1, 2, 3,"
    ids = decode.token_ids(ask(text=text))
    assert tokenizer.decode(ids) == text
    answer = decode.answer(ask(text=text, max_tokens=6))
    assert answer.text == tokenizer.decode(answer.tokens)


def test_a_prompt_of_one_token_is_answered_in_every_mode(decode: Decode) -> None:
    one = decode_pb2.TokenPrompt(ids=[504])
    plain, on, auto = (decode.answer(ask(tokens=one, mode=mode, max_tokens=6)) for mode in (OFF, ON, AUTO))
    assert plain.tokens == on.tokens == auto.tokens
    assert plain.done.usage.prompt_tokens == 1


def test_variables_for_the_chat_template_are_taken(decode: Decode) -> None:
    variables = Struct()
    variables.update({"enable_thinking": False, "tools": None, "depth": 3, "names": ["a", {"b": 1}]})
    asked = ask(max_tokens=2)
    asked.chat.chat_template_kwargs.CopyFrom(variables)
    assert decode.token_ids(asked) == decode.token_ids(ask())
    assert decode.answer(asked).done.usage.completion_tokens == 2


@pytest.mark.parametrize("sampling", [GREEDY, sampled(0.8, logit_bias={28: 1.5}, presence_penalty=0.5)])
def test_logprobs_are_the_same_with_and_without_speculation(decode: Decode, sampling: Any) -> None:
    plain, on = (decode.answer(ask(mode=mode, max_tokens=10, logprobs=4, sampling=sampling)) for mode in (OFF, ON))
    assert plain.tokens == on.tokens
    assert len(plain.logprobs) == len(plain.tokens)
    assert plain.logprobs == on.logprobs
    for token, entry in zip(plain.tokens, plain.logprobs, strict=True):
        values = [one.logprob for one in entry.top]
        assert len(values) == 4
        assert values == sorted(values, reverse=True)
        assert entry.logprob <= values[0] <= 0.0
        known = {one.token_id: one.logprob for one in entry.top}
        assert known.get(token, entry.logprob) == entry.logprob
        if sampling is GREEDY:
            assert entry.top[0].token_id == token


def test_logprobs_without_alternatives_hold_the_chosen_token_alone(decode: Decode) -> None:
    answer = decode.answer(ask(max_tokens=3, logprobs=0))
    assert [len(entry.top) for entry in answer.logprobs] == [0, 0, 0]
    assert all(entry.logprob < 0.0 for entry in answer.logprobs)


@pytest.mark.parametrize("mode", [OFF, ON, AUTO])
def test_a_stop_string_ends_the_answer_before_it(decode: Decode, mode: Any) -> None:
    whole = decode.answer(ask(max_tokens=20)).text
    # Begins and ends inside words, so that it lies across tokens.
    stop = whole[len(whole) // 2 : len(whole) // 2 + 5]
    answer = decode.answer(ask(mode=mode, max_tokens=20, stop=decode_pb2.StopOptions(strings=["\0", stop])))
    assert answer.text == whole[: whole.index(stop)]
    assert answer.done.finish_reason == decode_pb2.FINISH_REASON_STOP_STRING
    assert answer.done.stop_string == stop
    check_account(answer)


@pytest.mark.parametrize("mode", [OFF, ON, AUTO])
def test_a_stop_token_ends_the_answer_and_is_its_last_token(decode: Decode, tokenizer: Tokenizer, mode: Any) -> None:
    whole = decode.answer(ask(max_tokens=12)).tokens
    stop = whole[7]
    wanted = whole[: whole.index(stop) + 1]
    answer = decode.answer(ask(mode=mode, max_tokens=12, stop=decode_pb2.StopOptions(token_ids=[stop])))
    assert answer.tokens == wanted
    assert answer.text == tokenizer.decode(wanted[:-1])
    assert answer.done.finish_reason == decode_pb2.FINISH_REASON_STOP_TOKEN
    assert answer.done.stop_token_id == stop
    check_account(answer)


@pytest.mark.parametrize("mode", [OFF, ON])
def test_the_models_own_end_can_be_ignored(decode: Decode, tokenizer: Tokenizer, mode: Any) -> None:
    finished = "<|im_start|>user\nSay yes.<|im_end|>\n<|im_start|>assistant\nYes."
    ended = decode.answer(ask(text=finished, mode=mode, max_tokens=8, sampling=bias(2)))
    assert ended.done.finish_reason == decode_pb2.FINISH_REASON_EOS
    assert ended.done.stop_token_id == 2
    assert (ended.tokens, ended.text) == ([2], "")
    going_on = decode.answer(
        ask(text=finished, mode=mode, max_tokens=4, sampling=bias(2), stop=decode_pb2.StopOptions(ignore_eos=True))
    )
    assert going_on.tokens == [2, 2, 2, 2]
    assert going_on.text == tokenizer.decode([2, 2, 2, 2], skip_special_tokens=False)
    assert going_on.done.finish_reason == decode_pb2.FINISH_REASON_LENGTH


def bias(token: int) -> decode_pb2.SamplingOptions:
    return decode_pb2.SamplingOptions(logit_bias={token: 100.0})


def test_answers_that_run_at_once_are_those_that_run_alone_and_none_waits_for_another(decode: Decode) -> None:
    requests = [
        ask(mode=AUTO, max_tokens=20),
        ask("Write a line about the sea.", mode=AUTO, max_tokens=20, sampling=sampled()),
        ask("Name three colours.", mode=ON, max_tokens=20, stop=decode_pb2.StopOptions(ignore_eos=True)),
        ask("What is two plus two?", mode=OFF, max_tokens=20, stop=decode_pb2.StopOptions(ignore_eos=True)),
    ]
    together = decode.at_once(requests)
    for request, answer in zip(requests, together, strict=True):
        check_account(answer)
        assert decode.answer(request).tokens == answer.tokens
    # Every answer has begun before any has ended.
    assert max(answer.first_at for answer in together) < min(answer.last_at for answer in together)


def test_a_long_prompt_does_not_hold_up_an_answer_in_progress(decode: Decode) -> None:
    long = ask(tokens=decode_pb2.TokenPrompt(ids=[504 + i for i in range(1200)]), max_tokens=1)
    endless = ask(mode=OFF, max_tokens=2000, stop=decode_pb2.StopOptions(ignore_eos=True))
    running = decode.stub.Generate(endless, timeout=240)
    next(running)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        sent_at = time.monotonic()
        answering = pool.submit(decode.answer, long)
        arrivals = []
        for _ in running:
            arrivals.append(time.monotonic())
            if answering.done():
                break
    running.cancel()
    first_at = answering.result().first_at
    assert len([at for at in arrivals if sent_at < at < first_at]) >= 2


def test_the_served_pair_is_described(decode: Decode) -> None:
    model = decode.stub.GetModel(decode_pb2.GetModelRequest(), timeout=30)
    assert model.target.name == "smollm2-135m-instruct"
    assert (model.target.vocab_size, model.target.dtype, model.target.has_chat_template) == (49152, "float32", True)
    assert list(model.target.eos_token_ids) == [2]
    assert model.drafter.kind == "mtp_head"
    assert model.drafter.max_draft_width == 8
    assert len(model.target.fingerprint) == len(model.drafter.fingerprint) == 16
    assert {cell.draft_width for cell in model.costs} >= {1, 8}
    assert all(cell.verify_ms > 0 for cell in model.costs)
    assert model.exactness.positions > 0
    assert model.exactness.explanation
    assert model.backend in ("cpu", "metal", "cuda")
    assert model.hardware
    assert model.mlx_version


def test_the_server_tells_its_limits_and_its_policy_link(decode: Decode) -> None:
    before = decode.info()
    decode.answer(ask(mode=AUTO, max_tokens=4))
    after = decode.info()
    assert after.max_prompt_tokens == 8191
    assert (after.max_active_rows, after.max_queued_rows, after.default_max_tokens) == (8, 64, 512)
    assert after.version
    assert after.started_at.seconds > 1_500_000_000
    assert after.policy.connected
    assert after.policy.address.startswith("127.0.0.1:")
    assert after.policy.grants + after.policy.fallbacks > before.policy.grants + before.policy.fallbacks


@pytest.mark.parametrize("mode", [OFF, AUTO])
def test_a_chats_next_turn_does_not_run_the_turns_before_it_again(decode: Decode, mode: Any) -> None:
    first = ask(f"Name a river, a lake and a sea ({mode}).", mode=mode, max_tokens=24)
    turn = decode.answer(first)
    then = decode_pb2.GenerateRequest()
    then.CopyFrom(first)
    then.chat.messages.add(role="assistant", content=turn.text)
    then.chat.messages.add(role="user", content="And a mountain.")
    ids, known = decode.token_ids(then), decode.token_ids(first) + turn.tokens
    same = next((at for at, (one, other) in enumerate(zip(ids, known, strict=False)) if one != other), len(known))
    assert same > len(decode.token_ids(first)), "the answer was tokenised otherwise"
    # Whole blocks of 16 tokens, each with the token behind it; the answer's last token was never run.
    reused = (min(same, len(known) - 1) - 1) // 16 * 16
    usage = decode.answer(then).done.usage
    assert reused <= usage.cached_prompt_tokens < usage.prompt_tokens == len(ids)
    assert reused > 16
    info = decode.info()
    assert 0 < info.prefix_cache_bytes <= info.max_prefix_cache_bytes == 256 << 20


@pytest.mark.parametrize("tokens", [1, 3])
def test_tokens_can_be_counted_before_they_are_sent(decode: Decode, tokens: int) -> None:
    ids = list(range(500, 500 + tokens))
    counted = decode.stub.CountTokens(decode_pb2.CountTokensRequest(tokens=decode_pb2.TokenPrompt(ids=ids)), timeout=30)
    assert (counted.prompt_tokens, list(counted.ids)) == (tokens, [])


def test_max_tokens_defaults_to_the_servers(small: Decode) -> None:
    request = ask()
    request.ClearField("max_tokens")
    answer = small.answer(request)
    assert len(answer.tokens) == 3
    assert answer.done.finish_reason == decode_pb2.FINISH_REASON_LENGTH


def test_an_answer_ends_with_the_context(small: Decode) -> None:
    prompt = decode_pb2.TokenPrompt(ids=[504 + i % 100 for i in range(509)])
    answer = small.answer(ask(tokens=prompt, max_tokens=100, stop=decode_pb2.StopOptions(ignore_eos=True)))
    assert answer.done.finish_reason == decode_pb2.FINISH_REASON_LENGTH
    assert len(answer.tokens) == 3
