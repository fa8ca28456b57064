"""`burstgate chat`: a conversation in the terminal.

Owns the history, which is sent whole with every question. A question that failed is taken back out of it;
an answer that was cut short stays as far as it was read, since the person has read it too.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import typer

from burstgate.cli._statistics import statistics
from burstgate.cli._terminal import DECODE_ADDRESS, DecodeAddress, describe, errors, reported
from burstgate.cli.generate import (
    DraftWidth,
    MaxTokens,
    MinP,
    Seed,
    Speculation,
    SpeculationChoice,
    System,
    Temperature,
    TopK,
    TopP,
)
from burstgate.client import Client
from burstgate.errors import BurstgateError
from burstgate.options import Message, Sampling
from burstgate.results import Delta

HELP = "/reset forgets the conversation, /quit or Ctrl-D leaves, Ctrl-C cuts an answer short"


def chat(
    address: DecodeAddress = DECODE_ADDRESS,
    system: System = None,
    speculation: Speculation = SpeculationChoice.auto,
    draft_width: DraftWidth = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    top_k: TopK = None,
    min_p: MinP = None,
    seed: Seed = None,
) -> None:
    """Talk with the model; the whole conversation is sent each time."""
    sampling = Sampling(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed)
    with reported(address), Client(address) as client:
        name = client.model().target.name
        errors.print(f"{name} at {address}. {HELP}.", style="dim", markup=False)
        conversation = Conversation(client, address, system, sampling, speculation, draft_width, max_tokens)
        while (line := _read_line()) is not None:
            match line.strip():
                case "":
                    continue
                case "/quit":
                    return
                case "/reset":
                    conversation.history.clear()
                    errors.print("The conversation is forgotten.", style="dim")
                case command if command.startswith("/"):
                    errors.print(f"{command.split()[0]}: no such command; {HELP}.", style="dim", markup=False)
                case _:
                    conversation.ask(line)


@dataclass
class Conversation:
    """What has been said, and how to go on."""

    client: Client
    address: str
    system: str | None
    sampling: Sampling
    speculation: SpeculationChoice
    draft_width: int | None
    max_tokens: int | None
    history: list[Message] = field(default_factory=list)

    def ask(self, question: str) -> None:
        """Prints the answer as it comes and remembers both."""
        said: list[str] = []
        try:
            self._answer([*self.history, Message("user", question)], said)
        except KeyboardInterrupt:
            typer.echo()
            errors.print("Cut short.", style="dim")
        except BurstgateError as error:
            if said:
                typer.echo()
            errors.print(describe(error, self.address), style="red", markup=False, soft_wrap=True)
            return
        if said:
            self.history += [Message("user", question), Message("assistant", "".join(said))]

    def _answer(self, messages: list[Message], said: list[str]) -> None:
        stream = self.client.generate(
            messages,
            system=self.system,
            sampling=self.sampling,
            speculation=self.speculation.value,
            draft_width=self.draft_width,
            max_tokens=self.max_tokens,
        )
        with stream:
            for event in stream:
                if isinstance(event, Delta):
                    said.append(event.text)
                    sys.stdout.write(event.text)
                    sys.stdout.flush()
            typer.echo()
            errors.print(statistics(stream.result()), style="dim", markup=False, soft_wrap=True)


def _read_line() -> str | None:
    """The next line; None once the person leaves. Ctrl-C only clears the line."""
    while True:
        try:
            return input("> ")
        except KeyboardInterrupt:
            typer.echo()
        except EOFError:
            typer.echo()
            return None
