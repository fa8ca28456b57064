"""One line about an answer: how much, how fast, and what speculation did for it.

Must not print; the commands decide where the line goes.
"""

from __future__ import annotations

from burstgate.results import BurstCount, Result, SpeculationStats


def statistics(result: Result) -> str:
    """The line, such as `63 tokens, 41.2 tok/s, first after 180 ms; 18 rounds, 2.50 accepted a round`."""
    return "; ".join(part for part in (_speed(result), _speculation(result.speculation)) if part)


def _speed(result: Result) -> str:
    timings = result.timings
    parts = [_counted(result.usage.completion_tokens, "token")]
    if timings.tokens_per_second:
        parts.append(f"{timings.tokens_per_second:.1f} tok/s")
    parts.append(f"first after {timings.time_to_first_token_ms:.0f} ms")
    if result.usage.cached_prompt_tokens:
        parts.append(f"{result.usage.cached_prompt_tokens} of {result.usage.prompt_tokens} prompt tokens cached")
    parts.append(f"ended by {result.finish_reason.value.lower().replace('_', ' ')}")
    return ", ".join(parts)


def _speculation(stats: SpeculationStats) -> str:
    parts = []
    if stats.rounds:
        widths = " ".join(f"{count.draft_width}x{count.rounds}" for count in stats.draft_widths)
        parts.append(
            f"{_counted(stats.rounds, 'round')}, {stats.mean_accepted_length:.2f} accepted a round, K {widths}"
        )
    if stats.plain_steps:
        parts.append(_counted(stats.plain_steps, "plain step"))
    if stats.redecided:
        parts.append(f"{_counted(stats.redecided, 'position')} decided again, {stats.diverged} of them otherwise")
    if stats.bursts:
        parts.append("bursts " + ", ".join(map(_burst, stats.bursts)))
    if stats.explanation:
        parts.append(f"why: {stats.explanation}")
    return "; ".join(parts)


def _burst(count: BurstCount) -> str:
    return f"{count.bursts} {_words(count.mode)} ({_words(count.reason)})"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _words(name: str) -> str:
    return name.lower().replace("_", " ")
