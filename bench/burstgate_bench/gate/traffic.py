"""Who asks for how much, and when: lengths, contexts, joins and leaves. Knows nothing of acceptance or time."""

from collections.abc import Callable
from dataclasses import dataclass, field

from burstgate_bench.gate.texts import Random


@dataclass(frozen=True, slots=True)
class Answer:
    """A text before its drafts are drawn; the fields are those of `Text`."""

    context_tokens: int
    tokens: int
    thinking_tokens: int = 0
    after_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Demand:
    """All answers of a world."""

    slots: int
    answers: list[Answer]
    visitors: list[Answer] = field(default_factory=list)


Traffic = Callable[[Random, int], Demand]
"""From a source of chance and the tokens wanted to a demand of about as many."""


def single_stream(random: Random, tokens: int) -> Demand:
    """One conversation after the other, with answers of some hundred tokens."""
    return Demand(1, _until(tokens, lambda: Answer(_between(random, 20, 400), _between(random, 300, 1500))))


def short_requests(random: Random, tokens: int) -> Demand:
    """One stream of answers of 20 to 60 tokens."""
    return Demand(1, _until(tokens, lambda: Answer(_between(random, 50, 400), _between(random, 20, 60))))


def alternating_contexts(random: Random, tokens: int) -> Demand:
    """One stream that answers in a context of 300 tokens, then in one of 3000, and so on."""
    shortest, turn = int(random.choice((50, 100, 200))), iter(range(1 << 30))

    def answer() -> Answer:
        return Answer(3000 if next(turn) % 2 else 300, _between(random, shortest, 2 * shortest))

    return Demand(1, _until(tokens, answer))


def agent_loop(random: Random, tokens: int) -> Demand:
    """Answers of 30 to 100 tokens in a context that grows with every turn, until a new session starts."""
    context = [500]

    def answer() -> Answer:
        length = _between(random, 30, 100)
        at = context[0]
        context[0] = 500 if at > 8000 else at + length + _between(random, 100, 600)
        return Answer(at, length)

    return Demand(1, _until(tokens, answer))


def thinking(random: Random, tokens: int) -> Demand:
    """One stream whose answers open with a thought, during which the row may not speculate."""

    def answer() -> Answer:
        thought = _between(random, 20, 200)
        return Answer(_between(random, 50, 600), thought + _between(random, 100, 500), thinking_tokens=thought)

    return Demand(1, _until(tokens, answer))


def joins_and_leaves(random: Random, tokens: int) -> Demand:
    """One or two streams that go on, and others that come and go: mostly one to six at a time, seldom ten."""
    slots = int(random.integers(1, 3))
    # Visitors that emit a share s of all tokens are s / (1 - s) times as many as the streams.
    share = random.uniform(0.3, 0.7)
    visitors, at = [], 200.0
    while at < 0.95 * tokens:
        visitors.append(Answer(_between(random, 50, 600), _between(random, 40, 400), after_tokens=int(at)))
        at += random.exponential(220.0 / share)
    left = max(tokens - sum(visitor.tokens for visitor in visitors), tokens // 4)
    return Demand(slots, _until(left, lambda: Answer(_between(random, 50, 400), _between(random, 300, 1200))), visitors)


def flapping(random: Random, tokens: int) -> Demand:
    """Four streams, and a fifth that comes and goes every few steps: the batch crosses a width bucket each time."""
    stay = int(random.choice((8, 16, 24, 48)))
    visitors, at = [], 200
    while at < 0.9 * tokens:
        length = _between(random, stay, 2 * stay)
        visitors.append(Answer(_between(random, 50, 400), length, after_tokens=at))
        # The four others emit about four times as much while it is there, and as much again while it is not.
        at += 9 * length
    left = max(tokens - sum(visitor.tokens for visitor in visitors), tokens // 2)
    return Demand(4, _until(left, lambda: Answer(_between(random, 50, 400), _between(random, 400, 1500))), visitors)


def streams(slots: int) -> Traffic:
    """As many streams as `slots` at all times."""

    def traffic(random: Random, tokens: int) -> Demand:
        return Demand(slots, _until(tokens, lambda: Answer(_between(random, 20, 600), _between(random, 150, 700))))

    return traffic


def _until(tokens: int, answer: Callable[[], Answer]) -> list[Answer]:
    answers, total = [], 0
    while total < tokens:
        answers.append(answer())
        total += answers[-1].tokens
    return answers


def _between(random: Random, low: int, high: int) -> int:
    return int(random.integers(low, high + 1))
