"""The converted default target is an ordinary model for mlx-lm, and its decoding is exact once rows are."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from burstgate_decode.models.default_pair import DefaultPair

PrintedBy = Callable[[str], str]

LOAD = """
import sys
from burstgate_decode.models.blas import install_blas
report = install_blas()
import mlx.core as mx
import mlx_lm
model, tokenizer = mlx_lm.load(sys.argv[1])
"""


@pytest.fixture(scope="session")
def printed_by(default_pair: DefaultPair) -> PrintedBy:
    """Runs a script after loading the target, with every way to the hub closed."""

    def run(script: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", LOAD + script, str(default_pair.target)],
            capture_output=True,
            text=True,
            # One thread, because several wait for each other without end in sight on a machine that is busy.
            env={
                **os.environ,
                "HF_HUB_OFFLINE": "1",
                "https_proxy": "http://127.0.0.1:1",
                "OPENBLAS_NUM_THREADS": "1",
            },
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


def test_it_answers_in_sensible_words_through_the_chat_template(printed_by: PrintedBy) -> None:
    answer = printed_by(
        """
messages = [{"role": "user", "content": "What is the capital of France?"}]
prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
parts = list(mlx_lm.stream_generate(model, tokenizer, prompt, max_tokens=24))
print("".join(part.text for part in parts), parts[-1].finish_reason)
"""
    )
    assert answer == "The capital of France is Paris. stop"


def test_its_tokenizer_gives_back_every_text_and_splits_digits(printed_by: PrintedBy) -> None:
    printed = printed_by(
        """
for text in ("Hello world 12345", "é 中文 🙂\\n\\n  x", "def f(x):\\n\\treturn x", " leading"):
    assert tokenizer.decode(tokenizer.encode(text)) == text
assert len(tokenizer.encode("12345")) == 5
assert tokenizer.encode("<|im_start|>user") == [1, 4093]
print(tokenizer.eos_token_ids, tokenizer.bos_token, tokenizer.pad_token, tokenizer.unk_token)
"""
    )
    assert printed == "{2} <|im_start|> <|im_end|> <|endoftext|>"


EXACT = """
from mlx_lm.models.cache import KVCache, make_prompt_cache
report.set_exact_rows(True)
tokens = tokenizer.encode("The sea is old. Sailors count 1 2 3 4 5 and write def f(x): return x + 1. " * 25)

def filled(start, length):
    cache = make_prompt_cache(model)
    mx.eval(model(mx.array([tokens[start:start + length]]), cache))
    return cache
"""


def test_a_verify_of_any_width_has_the_bits_of_single_steps(printed_by: PrintedBy) -> None:
    printed = printed_by(
        EXACT
        + """
for context in (1, 45, 457):
    cache = filled(0, context)
    for rows in (2, 5, 8):
        draft = tokens[context:context + rows]
        verified = model(mx.array([draft]), cache)
        mx.eval(verified)
        for layer in cache:
            layer.trim(rows)
        for i, token in enumerate(draft):
            alone = model(mx.array([[token]]), cache)
            assert mx.array_equal(verified[0, i], alone[0, 0]).item(), (context, rows, i)
        for layer in cache:
            layer.trim(rows)
print("same")
"""
    )
    assert printed == "same"


def test_a_row_beside_longer_rows_has_the_bits_it_has_alone(printed_by: PrintedBy) -> None:
    printed = printed_by(
        EXACT
        + """
lengths, rows = (5, 33, 140), 4
alone = [filled(7 * i, length) for i, length in enumerate(lengths)]
drafts = [tokens[7 * i + length:7 * i + length + rows] for i, length in enumerate(lengths)]
together = [KVCache.merge([cache[layer] for cache in alone]) for layer in range(len(alone[0]))]
verified = model(mx.array(drafts), together)
mx.eval(verified)
for i, cache in enumerate(alone):
    for j, token in enumerate(drafts[i]):
        assert mx.array_equal(verified[i, j], model(mx.array([[token]]), cache)[0, 0]).item(), (i, j)
print("same")
"""
    )
    assert printed == "same"
