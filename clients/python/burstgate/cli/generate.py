"""`burstgate generate`: one prompt, answered live or as one JSON object.

Owns the mapping of flags to the client's options. Standard output carries the answer and nothing else; the
line of statistics goes to standard error.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import sys
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from rich.table import Table

from burstgate.cli._statistics import statistics
from burstgate.cli._terminal import (
    DECODE_ADDRESS,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    AsJson,
    DecodeAddress,
    errors,
    fail,
    reported,
)
from burstgate.client import Client
from burstgate.errors import BurstgateError
from burstgate.options import Sampling, Stop
from burstgate.results import Delta, Event, Result


class SpeculationChoice(enum.StrEnum):
    """Values of --speculation."""

    auto = "auto"
    on = "on"
    off = "off"


class PriorityChoice(enum.StrEnum):
    """Values of --priority."""

    low = "low"
    normal = "normal"
    high = "high"


Speculation = Annotated[
    SpeculationChoice, typer.Option(help="auto lets the policy decide; none of them changes the text.")
]
DraftWidth = Annotated[int | None, typer.Option(help="Most rows of a verify: one newest token plus the drafts.")]
MaxTokens = Annotated[int | None, typer.Option(help="Most tokens of an answer.")]
Temperature = Annotated[float | None, typer.Option(help="0 always takes the likeliest token.")]
TopP = Annotated[float | None, typer.Option(help="Keeps the likeliest tokens up to this mass.")]
TopK = Annotated[int | None, typer.Option(help="Keeps this many of the likeliest tokens.")]
MinP = Annotated[float | None, typer.Option(help="Drops tokens below this share of the best one's.")]
Seed = Annotated[int | None, typer.Option(help="Fixes the random draws.")]
System = Annotated[str | None, typer.Option(help="System message.")]


def generate(
    prompt: Annotated[
        str | None,
        typer.Argument(help='The prompt; "-" or none reads standard input, less one last newline.'),
    ] = None,
    address: DecodeAddress = DECODE_ADDRESS,
    speculation: Speculation = SpeculationChoice.auto,
    draft_width: DraftWidth = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    top_k: TopK = None,
    min_p: MinP = None,
    seed: Seed = None,
    system: System = None,
    stop: Annotated[list[str] | None, typer.Option(help="Ends the answer before this text; repeatable.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Send the text without the chat template.")] = False,
    logprobs: Annotated[int | None, typer.Option(help="Alternatives returned with each token.")] = None,
    n: Annotated[int, typer.Option("--n", help="Answers to generate.")] = 1,
    priority: Annotated[
        PriorityChoice, typer.Option(help="Rank among the requests that wait for a place.")
    ] = PriorityChoice.normal,
    tenant: Annotated[str | None, typer.Option(help="Whose request it is; tenants take turns.")] = None,
    timeout: Annotated[float | None, typer.Option(min=0.001, help="Most seconds to wait.")] = None,
    as_json: AsJson = False,
) -> None:
    """Answer one prompt."""
    text = _read_prompt(prompt)
    with reported(address), Client(address) as client:
        stream = client.generate(
            text,
            raw=raw,
            system=system,
            sampling=Sampling(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed),
            stop=Stop(strings=tuple(stop or ())),
            speculation=speculation.value,
            draft_width=draft_width,
            max_tokens=max_tokens,
            logprobs=logprobs,
            n=n,
            priority=priority.value,
            tenant=tenant,
            timeout_s=timeout,
        )
        try:
            with stream:
                if not as_json:
                    _print_live(stream, headers=n > 1)
                answers = stream.results()
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None
    if as_json:
        typer.echo(json.dumps(_as_object(answers), ensure_ascii=False))
        return
    for answer in answers:
        prefix = f"[{answer.index}] " if n > 1 else ""
        errors.print(prefix + statistics(answer), style="dim", markup=False, soft_wrap=True)
        if answer.logprobs:
            errors.print(_logprobs_table(answer))


def _read_prompt(prompt: str | None) -> str:
    if prompt is not None and prompt != "-":
        return prompt
    if sys.stdin.isatty():
        errors.print("Type the prompt, then Ctrl-D on a line of its own.", style="dim")
    try:
        return sys.stdin.buffer.read().decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        fail(f"the prompt is not valid UTF-8 at byte {error.start}", EXIT_USAGE)
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _print_live(events: Iterable[Event], *, headers: bool) -> None:
    """Prints the answers one after another: the current one live, the others when it is their turn."""
    printer = _Printer(headers)
    try:
        for event in events:
            if isinstance(event, Delta):
                printer.text(event.index, event.text)
            else:
                printer.end(event.index)
    except (BurstgateError, KeyboardInterrupt):
        printer.break_line()
        raise


class _Printer:
    """Keeps what arrives of later answers until the current one has ended."""

    def __init__(self, headers: bool) -> None:
        self._headers = headers
        self._current = 0
        self._waiting: dict[int, str] = {}
        self._ended: set[int] = set()
        self._begun = False

    def text(self, index: int, text: str) -> None:
        """Prints text of the current answer, keeps that of a later one."""
        if index == self._current:
            self._print(text)
        else:
            self._waiting[index] = self._waiting.get(index, "") + text

    def end(self, index: int) -> None:
        """Ends an answer; its successor becomes the current one, with what was kept of it."""
        self._ended.add(index)
        while self._current in self._ended:
            self._print("\n")
            self._begun = False
            self._current += 1
            if self._current in self._waiting:
                self._print(self._waiting.pop(self._current))

    def break_line(self) -> None:
        """Leaves the terminal on a fresh line when an answer is cut off."""
        if self._begun:
            self._print("\n")

    def _print(self, text: str) -> None:
        if self._headers and not self._begun:
            sys.stdout.write(f"--- answer {self._current}\n")
        self._begun = True
        sys.stdout.write(text)
        sys.stdout.flush()


def _as_object(answers: tuple[Result, ...]) -> dict[str, Any]:
    objects = [dataclasses.asdict(answer) for answer in answers]
    return objects[0] if len(objects) == 1 else {**objects[0], "answers": objects}


def _logprobs_table(answer: Result) -> Table:
    table = Table(header_style="bold", box=None, pad_edge=False)
    table.add_column("token id", justify="right")
    table.add_column("logprob", justify="right")
    table.add_column("likeliest")
    for token_id, entry in zip(answer.token_ids, answer.logprobs, strict=False):
        alternatives = "  ".join(f"{top.token_id} {top.logprob:.3f}" for top in entry.top)
        table.add_row(str(token_id), f"{entry.logprob:.3f}", alternatives)
    return table
