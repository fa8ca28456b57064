"""Prometheus metrics of the decode service, besides those of its calls."""

from collections.abc import Callable

import prometheus_client

from burstgate_decode.engine.request import Completion
from burstgate_runtime.faults import Fault

_TOKENS = prometheus_client.Counter("burstgate_decode_tokens", "Answer tokens emitted.")
_PROMPT_TOKENS = prometheus_client.Counter("burstgate_decode_prompt_tokens", "Prompt tokens of finished answers.")
_ANSWERS = prometheus_client.Counter("burstgate_decode_answers", "Finished answers.", ["finish_reason"])
_STEPS = prometheus_client.Counter("burstgate_decode_steps", "Steps of finished answers.", ["kind"])
_PREFIX_HITS = prometheus_client.Counter(
    "burstgate_decode_prefix_cache_hits", "Finished answers that skipped tokens of their prompt."
)
_PREFIX_TOKENS = prometheus_client.Counter(
    "burstgate_decode_prefix_cache_tokens", "Prompt tokens that finished answers skipped."
)
PREFIX_BYTES = prometheus_client.Gauge(
    "burstgate_decode_prefix_cache_bytes", "Bytes kept for prompts that begin as earlier ones did."
)
_STOPPED = prometheus_client.Counter(
    "burstgate_decode_stopped_rounds",
    "Rounds of finished answers that stopped before the widest verify they could have run.",
)
_SAVED_DRAFTS = prometheus_client.Counter(
    "burstgate_decode_saved_drafts", "Drafts that rounds of finished answers did not make because they stopped early."
)
_DRAFTS = prometheus_client.Counter("burstgate_decode_drafts", "Drafts of finished answers.", ["outcome"])
_REDECIDED = prometheus_client.Counter(
    "burstgate_decode_redecided",
    "Positions decided again by a one-row step because a verify's margin was too small.",
)
_DIVERGED = prometheus_client.Counter(
    "burstgate_decode_diverged", "Positions at which deciding again gave another token than the shared forward."
)
_BURSTS = prometheus_client.Counter(
    "burstgate_decode_bursts", "Bursts that finished answers took part in.", ["mode", "reason"]
)
_QUEUE_WAIT = prometheus_client.Histogram(
    "burstgate_decode_queue_wait_seconds",
    "From an answer's arrival to its place.",
    buckets=(0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
)
_REJECTED = prometheus_client.Counter("burstgate_decode_rejected", "Requests that were not admitted.", ["reason"])
_CACHE_RESERVED = prometheus_client.Gauge(
    "burstgate_decode_cache_reserved_bytes", "Memory that the caches of running answers may come to."
)
_CACHE_LIMIT = prometheus_client.Gauge(
    "burstgate_decode_cache_limit_bytes", "Most memory that all caches together may take."
)
_FIRST_TOKEN = prometheus_client.Histogram(
    "burstgate_decode_time_to_first_token_seconds",
    "From arrival to the first token.",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)
_TOKEN_TIME = prometheus_client.Histogram(
    "burstgate_decode_time_per_token_seconds",
    "Mean time between an answer's tokens.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 1),
)


def observe_wait(queue_ms: float) -> None:
    """Counts an answer that was given its place."""
    _QUEUE_WAIT.observe(queue_ms / 1e3)


def observe_rejection(fault: Fault) -> None:
    """Counts a request that the engine refused, or gave up while it waited."""
    _REJECTED.labels(fault.reason.lower()).inc()


def watch_cache(cache_bytes: Callable[[], tuple[int, int]]) -> None:
    """Reads the bytes reserved and their limit whenever metrics are read."""
    _CACHE_RESERVED.set_function(lambda: cache_bytes()[0])
    _CACHE_LIMIT.set_function(lambda: cache_bytes()[1])


def observe_answer(answer: Completion) -> None:
    """Counts a finished answer."""
    stats, timings = answer.speculation, answer.timings
    _TOKENS.inc(answer.completion_tokens)
    _PROMPT_TOKENS.inc(answer.prompt_tokens)
    _PREFIX_HITS.inc(answer.cached_prompt_tokens > 0)
    _PREFIX_TOKENS.inc(answer.cached_prompt_tokens)
    _ANSWERS.labels(answer.finish_reason.name.lower()).inc()
    _STEPS.labels("plain").inc(stats.plain_steps)
    _STEPS.labels("round").inc(stats.rounds)
    _DRAFTS.labels("accepted").inc(stats.accepted)
    _DRAFTS.labels("rejected").inc(stats.proposed - stats.accepted)
    _DRAFTS.labels("dropped").inc(stats.dropped)
    _STOPPED.inc(stats.stopped_early)
    _SAVED_DRAFTS.inc(stats.saved)
    _REDECIDED.inc(stats.redecided)
    _DIVERGED.inc(stats.diverged)
    for (mode, reason), bursts in stats.bursts.items():
        _BURSTS.labels(mode.name.lower(), reason.name.lower()).inc(bursts)
    _FIRST_TOKEN.observe(timings.time_to_first_token_ms / 1e3)
    if answer.completion_tokens > 1:
        _TOKEN_TIME.observe(timings.decode_ms / 1e3 / (answer.completion_tokens - 1))
