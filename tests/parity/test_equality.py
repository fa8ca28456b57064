"""No token depends on how it was decoded: a sample of the full comparison, by the command that runs it."""

import json
import subprocess
import sys


def test_plain_batched_fixed_width_and_auto_answers_are_the_same_tokens() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "burstgate_bench.equality", "--sample", "10", "--tokens", "32"],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    result = json.loads(run.stdout.splitlines()[-1])
    assert result["divergences"] == 0
    assert result["prompts"] == 10
    assert result["tokens"] > 100
    # Every prompt is answered plainly among others, with rounds of one width, and with AUTO.
    assert result["compared_tokens"] == 3 * result["tokens"]
