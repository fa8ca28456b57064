"""Plays every arm on every world, on a few processes. Prints and writes nothing."""

import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from burstgate_bench.gate.arms import ARMS
from burstgate_bench.gate.families import FAMILIES
from burstgate_bench.gate.play import play
from burstgate_bench.gate.recipe import build, sized
from burstgate_bench.gate.score import Score, score, score_fixed
from burstgate_bench.gate.traces import read_trace, world_of


@dataclass(frozen=True, slots=True)
class Options:
    """What is played."""

    workloads: int
    """Of each family."""
    families: tuple[str, ...]
    arms: tuple[str, ...]
    seed: int
    steps: int
    """That the best fixed mode of a world needs at least."""
    processes: int
    traces: tuple[Path, ...] = ()
    """Recorded runs; each is one more family."""


@dataclass(frozen=True, slots=True)
class Match:
    """All arms on one world."""

    family: str
    index: int
    tokens: int
    scores: dict[str, Score]
    """By arm; always plain is `plain`, always K is `K=4` and so on."""


def tournament(options: Options, progress: Callable[[Match], None]) -> list[Match]:
    """Plays all matches, in order of family and index whichever process is first; `progress` as each ends."""
    sources: list[str | Path] = [*options.families, *options.traces]
    jobs = [(source, index, options) for source in sources for index in range(options.workloads)]
    # Not forked: a copy of a process that has threads may hang.
    if options.processes == 1:
        return _collect(map(_job, jobs), progress)
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        return _collect(pool.imap(_job, jobs, chunksize=2), progress)


def match(source: str | Path, index: int, *, arms: Sequence[str], seed: int, steps: int) -> Match:
    """All arms on one world of a family or of a recorded run."""
    if isinstance(source, Path):
        trace = read_trace(source)
        family = f"trace {trace.name}"
        built = sized(lambda tokens: world_of(trace, np.random.default_rng([seed, index]), tokens), steps)
    else:
        family = source
        built = build(source, FAMILIES[source], seed=seed, index=index, steps=steps)
    scores = {("plain" if k == 1 else f"K={k}"): score_fixed(run, built.fixed) for k, run in built.fixed.items()}
    for arm in arms:
        scores[arm] = score(play(built.world, ARMS[arm](built.world)), built.fixed)
    return Match(family, index, built.world.tokens, scores)


def _job(job: tuple[str | Path, int, Options]) -> Match:
    source, index, options = job
    return match(source, index, arms=options.arms, seed=options.seed, steps=options.steps)


def _collect(matches: Iterable[Match], progress: Callable[[Match], None]) -> list[Match]:
    done = []
    for one in matches:
        progress(one)
        done.append(one)
    return done
