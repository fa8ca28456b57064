"""Says in one sentence, with numbers, why a grant is what it is.

Sentences are built for every grant, so this is part of the hot path: one format each, nothing looked
up. They must be true of the state they are given and make sense without the source.
"""

from collections.abc import Mapping

from burstgate_policy.core.depth import DepthChoice
from burstgate_policy.core.regret import Regret
from burstgate_policy.core.types import Situation


def promise(choice: DepthChoice) -> str:
    """What a draft width promises."""
    if choice.round_ms is None:
        return f"K={choice.draft_width} promises {choice.expected_tokens:.1f} tokens a row, cost unknown"
    trial = ", tried to learn about it" if choice.trial else ""
    return (
        f"K={choice.draft_width} promises {choice.expected_tokens:.1f} tokens a row in {choice.round_ms:.0f} ms{trial}"
    )


def gate_speculative(plain_tps: float | None, speculative_tps: float | None, choice: DepthChoice) -> str:
    """The gate speculates."""
    if speculative_tps is None:
        return f"speculation is on and being measured; {promise(choice)}"
    if plain_tps is None:
        return f"speculation delivers {speculative_tps:.1f} tok/s, plain is not measured yet; {promise(choice)}"
    return (
        f"speculation delivers {speculative_tps:.1f} tok/s against {plain_tps:.1f} plain "
        f"over the last windows; {promise(choice)}"
    )


def gate_plain(plain_tps: float | None, speculative_tps: float | None) -> str:
    """The gate decodes plainly."""
    return (
        f"plain decoding delivers {_tps(plain_tps)} against {_tps(speculative_tps)} with speculation "
        "over the last windows"
    )


def gate_probe_plain(plain_tps: float | None, speculative_tps: float | None) -> str:
    """The gate measures plain decoding while speculation is ahead."""
    if plain_tps is None:
        return f"speculation delivers {_tps(speculative_tps)}; plain decoding is measured for the first time"
    return (
        f"speculation delivers {_tps(speculative_tps)}; the last {plain_tps:.1f} tok/s measured "
        "for plain decoding are checked again"
    )


def gate_probe_speculative(plain_tps: float | None, speculative_tps: float | None, choice: DepthChoice) -> str:
    """The gate measures speculation while plain decoding is ahead."""
    return (
        f"plain decoding delivers {_tps(plain_tps)}; the last {_tps(speculative_tps)} measured with "
        f"speculation are checked again; {promise(choice)}"
    )


def depth_plain(gains: Mapping[int, float]) -> str:
    """No draft width promises to pay here."""
    if not gains:
        return "nothing is known of what rounds cost here, and speculation did not pay before"
    best = max(gains, key=gains.__getitem__)
    return f"no draft width promises to pay here: the best, K={best}, {gains[best]:.2f} times plain speed"


def held(regret: Regret) -> str:
    """Exploring has cost too much."""
    best = "plain decoding" if regret.recent_best == 1 else f"K={regret.recent_best}"
    return f"{regret.recent_share:.1%} of the recent time was lost against {best} alone, so nothing else is tried"


def entry_pin(situation: Situation, pin_tokens: int, choice: DepthChoice) -> str:
    """A verify decides the opening of an answer."""
    return (
        f"a row has emitted {_counted(situation.min_emitted_tokens, 'token')} and a verify decides the first "
        f"{pin_tokens} of an answer, though plain decoding is ahead; {promise(choice)}"
    )


def profiling_plain(steps: int, samples: int, needed: int) -> str:
    """The plain step of a pairing is measured."""
    burst = f"profiled burst {samples + 1} of at least {needed}"
    return f"{burst} measures what a plain step costs, over {_counted(steps, 'step')}"


def profiling_speculative(rounds: int, samples: int, needed: int, choice: DepthChoice) -> str:
    """The rounds of a pairing are measured."""
    burst = f"profiled burst {samples + 1} of at least {needed}"
    return f"{burst} measures speculation over {_counted(rounds, 'more round')}; {promise(choice)}"


def passing_plain(why: str, steps: int, samples: int, needed: int) -> str:
    """The plain step is measured while a verdict rules."""
    burst = f"burst {samples + 1} of at least {needed}"
    return f"{why}; {burst} measures what a plain step costs, over {_counted(steps, 'step')}"


def passing_rounds(why: str, rounds: int, samples: int, needed: int, choice: DepthChoice) -> str:
    """Rounds are measured while a verdict rules."""
    burst = f"burst {samples + 1} of at least {needed}"
    return f"{why}; {burst} measures speculation over {_counted(rounds, 'more round')}; {promise(choice)}"


def no_room(lane_width: int, situation: Situation) -> str:
    """The rows leave no room for a draft."""
    return (
        f"the rows' options and budgets allow a verify of {situation.max_draft_width} row, "
        f"which drafts nothing; the lane could run {lane_width}"
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _tps(tokens_per_second: float | None) -> str:
    return "an unmeasured rate" if tokens_per_second is None else f"{tokens_per_second:.1f} tok/s"
