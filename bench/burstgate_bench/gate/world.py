"""A simulated workload: texts, when they join, and the machine that decodes them.

A world is a value and never changes; the same family, seed and index always give the same one. What each
policy did to it is kept elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from burstgate_bench.gate.machine import Floats, Machine
from burstgate_bench.gate.texts import Kind, Random
from burstgate_policy.core.types import CostCell, LaneCapabilities, PolicyKey

_TABLE_DEPTH_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Text:
    """One answer: what precedes it and what its drafts would be worth."""

    context_tokens: int
    accepted: bytes
    """Byte p counts the drafts that the widest round would keep after p tokens of the answer; one byte a token."""
    kinds: bytes
    """Byte p is the index of the kind at p."""
    thinking_tokens: int = 0
    """Tokens at its opening during which it may not speculate."""
    after_tokens: int = 0
    """For a visitor: it joins once the world has emitted this many tokens."""

    def __len__(self) -> int:
        return len(self.accepted)


@dataclass(frozen=True)
class World:
    """Texts and a machine."""

    name: str
    kinds: tuple[Kind, ...]
    texts: tuple[Text, ...]
    """Decoded in order by `slots` streams: a free stream takes the next one."""
    slots: int
    visitors: tuple[Text, ...]
    """Join besides, each when its time has come, and leave when they end."""
    machine: Machine
    cells: tuple[CostCell, ...]
    """The cost table that the lane was opened with; it may be wrong."""
    cap: int
    """Widest verify."""

    @property
    def tokens(self) -> int:
        """All tokens to be emitted."""
        return sum(map(len, self.texts)) + sum(map(len, self.visitors))

    @property
    def key(self) -> PolicyKey:
        """A pairing as the decode service would name it."""
        return PolicyKey(
            target="simulated",
            drafter="simulated",
            hardware=self.machine.costs.name,
            draft_width=self.cap,
            target_fingerprint="1",
            drafter_fingerprint="1",
            dtype="float32",
            backend="cpu",
            blas="",
            mlx_version="0",
        )

    @property
    def capabilities(self) -> LaneCapabilities:
        """Of the lane: it batches, and nothing but its cost table says what pays."""
        return LaneCapabilities(batchable=True, max_width=64, drafter_kind="mtp_head", apple_gpu_generation=0)

    @cached_property
    def round_tokens(self) -> Floats:
        """Mean tokens of a round by kind and K, over all positions of the world's texts; shape (kinds, cap + 1).

        Column 0 is unused, column 1 is a plain step's one token.
        """
        tokens = np.ones((len(self.kinds), self.cap + 1))
        accepted = np.frombuffer(b"".join(text.accepted for text in (*self.texts, *self.visitors)), np.uint8)
        kinds = np.frombuffer(b"".join(text.kinds for text in (*self.texts, *self.visitors)), np.uint8)
        for kind in np.unique(kinds):
            of_kind = accepted[kinds == kind]
            for k in range(2, self.cap + 1):
                tokens[kind, k] = 1.0 + np.minimum(of_kind, k - 1).mean()
        return tokens

    def rates(self, kinds: Sequence[int], depth_tokens: int, rows_factor: float) -> Floats:
        """Expected tokens a millisecond by K for a batch of rows of these kinds; element 0 is unused (0)."""
        costs = self.machine.costs.at(len(kinds))
        base_ms = (costs.fixed_ms + costs.slope_ms * depth_tokens)[1 : self.cap + 1]
        round_ms = base_ms[0] + (base_ms - base_ms[0]) * rows_factor
        rates: Floats = self.round_tokens[list(kinds), 1:].sum(axis=0) / round_ms
        return np.append(0.0, rates)


def measured_cells(
    machine: Machine, cap: int, random: Random, *, error: float, systematic: bool
) -> tuple[CostCell, ...]:
    """The table as decode measures it at start: each cell off by a random error of this relative size.

    `systematic`: each K is off by between the half and the whole of `error`, either way, at every batch width.
    """
    by_k = {k: 1.0 + error * random.uniform(0.6, 1.0) * random.choice((-1.0, 1.0)) for k in range(1, cap + 1)}
    cells = []
    for width in (1, 2, 4, 8):
        costs = machine.costs.at(width)
        for k in range(1, cap + 1) if width == 1 else (k for k in (1, 2, 4, 6, 8) if k <= cap):
            factor = by_k[k] if systematic else max(1.0 + error * random.standard_normal(), 0.1)
            verify_ms = costs.verify_ms[k] + costs.depth_ms[k] * _TABLE_DEPTH_TOKENS
            cells.append(CostCell(width, k, _TABLE_DEPTH_TOKENS, verify_ms * factor, costs.draft_ms[k] * factor))
    return tuple(cells)
