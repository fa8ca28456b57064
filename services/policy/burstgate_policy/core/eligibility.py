"""Which rows may speculate, and which openings a verify must decide. Pure predicates."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RowStatus:
    """What eligibility needs to know of one row."""

    inside_thinking: bool
    answer_tokens: int
    """Tokens emitted after the thinking section."""
    output_tokens: int
    """Tokens emitted in all."""
    suppress_tool_calls: bool
    speculation_disabled: bool


@dataclass(frozen=True, slots=True)
class EligibilityConfig:
    """The levers of one lane."""

    speculate_in_thinking: bool = False
    """Off: near-ties decided differently inside a long thought have changed whole answers."""
    resume_guard_tokens: int = 0
    """Tokens a row must have emitted before it speculates; counted after the thinking section,
    except inside it, where all of its output counts."""


def may_speculate(row: RowStatus, config: EligibilityConfig) -> bool:
    """Whether one row may speculate; a batch may when every row may."""
    if row.suppress_tool_calls or row.speculation_disabled:
        return False
    if row.inside_thinking:
        return config.speculate_in_thinking and row.output_tokens >= config.resume_guard_tokens
    return row.answer_tokens >= config.resume_guard_tokens


def pinned_steps(min_emitted_tokens: int, pin_tokens: int) -> int:
    """Steps that the entry pin still covers: 0 once every row has passed its opening."""
    return max(pin_tokens - min_emitted_tokens, 0)
