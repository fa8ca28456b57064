"""What the hindsight benchmark decodes. Pure, so that a wrong option is refused before anything is loaded."""

from dataclasses import dataclass

import typer

TEXTS: dict[str, tuple[str, ...]] = {
    "enumeration": ("enumeration",),
    "code": ("code",),
    "prose": ("prose",),
    "mix": ("enumeration", "prose", "code"),
}
"""The stretches of each kind of text; a mix changes its kind with every stretch."""


@dataclass(frozen=True)
class HindsightOptions:
    """How much is measured."""

    texts: tuple[str, ...]
    tokens: int
    """Of one stretch."""
    streams: tuple[int, ...]
    widths: tuple[int, ...]
    """Draft widths that are held to the end, besides plain decoding."""
    blocks: int


def whole_numbers(option: str, text: str, *, least: int) -> tuple[int, ...]:
    """The numbers of an option. Raises `typer.BadParameter`, which names it."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) >= least for part in parts):
        raise typer.BadParameter(f"{option}: {text} must be whole numbers from {least} on, separated by commas")
    return tuple(int(part) for part in parts)
