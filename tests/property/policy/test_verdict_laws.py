"""Laws of a verdict's life: nothing is parked for ever, nothing flaps, and asking changes nothing."""

import dataclasses
import math
import pickle
import random

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from burstgate_policy.core.config import CoreConfig
from burstgate_policy.core.controller import Lane
from burstgate_policy.core.evidence import weigh
from burstgate_policy.core.hint import Hint
from burstgate_policy.core.mtp_policy import MtpPolicy
from burstgate_policy.core.profile import Profile, ProfileSample
from burstgate_policy.core.replay import replay
from burstgate_policy.core.stages import Profiling, Settled
from burstgate_policy.core.starvation import NoRound
from burstgate_policy.core.types import (
    BurstOutcome,
    CostCell,
    LaneCapabilities,
    Mode,
    Pin,
    PolicyKey,
    Situation,
    Snapshot,
    State,
    StepRecord,
    Verdict,
)

KEY = PolicyKey("target", "drafter", "machine", 8, "t", "d", "float32", "cpu", "openblas", "0.32.4")
CAPABILITIES = LaneCapabilities(batchable=True, max_width=32, drafter_kind="mtp_head", apple_gpu_generation=0)
COSTS = [CostCell(1, k, 64, 60.0 + 5 * k, 3.5 * (k - 1)) for k in (1, 2, 4, 8)]
CONFIG = CoreConfig()
T0 = 1_800_000_000.0
CHANGES = CONFIG.verdict.contradictions_to_change

seeds = st.integers(0, 2**32 - 1)


def start(*, static_default: bool = False, hint: Hint | None = None) -> MtpPolicy:
    return MtpPolicy.start(
        KEY, force=None, adaptive=True, static_default=static_default, hint=hint, config=CONFIG, now_s=T0
    )


def sample(source: random.Random, speedup: float, noise: float) -> ProfileSample:
    """Eight rounds at batch width 1 on a pairing of this speed-up, and two plain steps of 60 ms."""
    tokens = max(speedup * 2.0 * (1.0 + source.gauss(0.0, noise)), 1.0 / 8)
    kept = source.choice((0.2, 0.5, 0.9))
    return ProfileSample(
        rounds=8,
        row_rounds=8000,
        emitted=max(round(tokens * 8000), 8000),
        proposed=1000,
        accepted=round(1000 * kept),
        draft_ms=0.0,
        verify_ms=8 * 120.0 * max(1.0, 1.0 / max(tokens, 1e-9)),
        overhead_ms=0.0,
        plain_step_ms=60.0 * (1.0 + abs(source.gauss(0.0, noise / 2))),
        tried=1000,
        plain_steps=2,
        depth_tokens=100,
    )


def measure(policy: MtpPolicy, source: random.Random, speedup: float, noise: float, now_s: float) -> None:
    """Gives the measurement under way what it needs."""
    for _ in range(CONFIG.verdict.vague_samples):
        stage = policy.stage
        if not isinstance(stage, Profiling) and not (isinstance(stage, Settled) and stage.challenge is not None):
            return
        policy.record(sample(source, speedup, noise), now_s)


def next_challenge(policy: MtpPolicy) -> float:
    stage = policy.stage
    assert isinstance(stage, Settled)
    policy.advance(stage.rechallenge_at_s)
    return stage.rechallenge_at_s


def verdict_of(policy: MtpPolicy) -> Verdict:
    stage = policy.stage
    assert isinstance(stage, Settled)
    return stage.verdict


@settings(max_examples=60, deadline=None)
@given(seeds, st.floats(0.5, 0.8) | st.floats(1.9, 4.0), st.floats(0.0, 0.05), st.booleans())
def test_a_pairing_that_is_stable_never_changes(seed: int, speedup: float, noise: float, static_default: bool) -> None:
    source, policy = random.Random(seed), start(static_default=static_default)
    measure(policy, source, speedup, noise, T0)
    first = verdict_of(policy)
    assert first is (Verdict.ENABLE if speedup > 1.0 else Verdict.DECLINE)
    for _ in range(30):
        measure(policy, source, speedup, noise, next_challenge(policy))
        assert verdict_of(policy) is first


@settings(max_examples=60, deadline=None)
@given(seeds, st.floats(1.8, 5.0), st.floats(0.0, 0.2), st.integers(0, 6))
def test_a_declined_pairing_that_pays_later_is_enabled_within_three_challenges(
    seed: int, speedup: float, noise: float, confirmed_before: int
) -> None:
    source, policy = random.Random(seed), start()
    measure(policy, source, 0.5, 0.02, T0)
    for _ in range(confirmed_before):
        measure(policy, source, 0.5, 0.02, next_challenge(policy))
    assert verdict_of(policy) is Verdict.DECLINE
    waited_s, challenges = 0.0, 0
    while verdict_of(policy) is Verdict.DECLINE:
        before_s = policy.stage.settled_at_s  # type: ignore[union-attr]
        now_s = next_challenge(policy)
        waited_s, challenges = waited_s + now_s - before_s, challenges + 1
        measure(policy, source, speedup, noise, now_s)
        # A measurement that does not say so itself is chance, not the law's business.
        assume(verdict_of(policy) is Verdict.ENABLE or policy.stage.contradictions == challenges)  # type: ignore[union-attr]
    assert challenges <= CHANGES
    assert waited_s <= CHANGES * CONFIG.verdict.rechallenge_limit_s


@settings(max_examples=60, deadline=None)
@given(seeds, st.floats(0.9, 1.7), st.floats(0.0, 0.5), st.booleans())
def test_at_a_threshold_a_verdict_changes_at_most_once_a_measurement_and_seldom(
    seed: int, speedup: float, noise: float, static_default: bool
) -> None:
    source, policy = random.Random(seed), start(static_default=static_default)
    measure(policy, source, speedup, noise, T0)
    changes, last = 0, verdict_of(policy)
    for _ in range(60):
        measure(policy, source, speedup, noise, next_challenge(policy))
        changes += verdict_of(policy) is not last
        last = verdict_of(policy)
    assert changes <= 20


actions = st.one_of(
    st.tuples(st.just("sample"), st.floats(0.2, 5.0), st.floats(0.0, 1.0)),
    st.tuples(st.just("broken"), st.sampled_from([math.nan, math.inf, -1.0, 0.0]), st.just(0.0)),
    st.tuples(st.just("wait"), st.floats(0.0, 1e6), st.just(0.0)),
    st.tuples(st.just("back"), st.floats(0.0, 1e9), st.just(0.0)),
    st.tuples(st.just("no round"), st.integers(1, 300).map(float), st.just(0.0)),
    st.tuples(st.just("rounds"), st.integers(1, 9).map(float), st.floats(1.0, 1000.0)),
    st.tuples(st.just("pin"), st.floats(0.0, 1e5), st.just(0.0)),
    st.tuples(st.just("unpin"), st.just(0.0), st.just(0.0)),
    st.tuples(st.just("adopt"), st.floats(-1e6, 1e6), st.just(0.0)),
    st.tuples(st.just("reset"), st.just(0.0), st.just(0.0)),
)


def act(policy: MtpPolicy, action: tuple[str, float, float], now_s: float, source: random.Random) -> float:
    name, first, second = action
    match name:
        case "sample":
            policy.record(sample(source, first, second), now_s)
        case "broken":
            policy.record(dataclasses.replace(sample(source, 1.0, 0.0), verify_ms=first), now_s)
        case "wait":
            now_s += first
        case "back":
            now_s -= first
        case "no round":
            for _ in range(int(first)):
                policy.note_no_round(NoRound.NO_ROOM, now_s)
        case "rounds":
            step = StepRecord(Mode.SPECULATIVE, 8, 1, 100, int(first), 7, (1,) * 7, 0.0, second, 0.0, second, False)
            for _ in range(200):
                policy.note_round(step, now_s)
        case "pin":
            policy.pin(Pin(True, "why", "who", now_s, now_s + first))
        case "unpin":
            policy.unpin()
        case "adopt":
            settled_at_s = max(now_s + first, 0.0)
            policy.adopt(Hint(KEY, Verdict.ENABLE, 0.5, 4, settled_at_s=settled_at_s), now_s)
        case "reset":
            policy.reset()
    policy.advance(now_s)
    return now_s


@settings(max_examples=150, deadline=None)
@given(seeds, st.booleans(), st.lists(actions, max_size=60))
def test_no_story_raises_parks_a_verdict_or_changes_it_without_a_version(
    seed: int, static_default: bool, story: list[tuple[str, float, float]]
) -> None:
    source, policy, now_s = random.Random(seed), start(static_default=static_default), T0
    limits = CONFIG.verdict
    for action in story:
        version, before = policy.version, policy.snapshot(now_s)
        now_s = act(policy, action, now_s, source)
        after = policy.snapshot(now_s)
        assert policy.version >= version
        if policy.version == version and action[0] not in {"wait", "back", "no round"}:
            assert after == before
        check(after)
        hint = policy.take_settled()
        assert hint is None or (hint.version == policy.version and hint.evidence is not None)
        if after.state is State.SETTLED:
            assert after.rechallenge_at is not None
            assert after.expires_at is not None
            # However the clock was set, a challenge is under way or never further away than this.
            challenged = isinstance(policy.stage, Settled) and policy.stage.challenge is not None
            assert challenged or after.rechallenge_at - now_s <= 2 * limits.rechallenge_limit_s
            assert after.expires_at - now_s <= 2 * limits.ttl_s


def check(view: Snapshot) -> None:
    assert view.state in {State.PROFILING, State.SETTLED}
    assert (view.verdict is Verdict.UNSPECIFIED) == (view.state is State.PROFILING)
    assert "nan" not in view.explanation
    if view.evidence is not None:
        evidence = view.evidence
        assert 0.0 <= evidence.speedup_low <= evidence.speedup <= evidence.speedup_high
        assert all(math.isfinite(value) for value in dataclasses.astuple(evidence))


bursts = st.builds(
    ProfileSample,
    rounds=st.integers(1, 100),
    row_rounds=st.integers(1, 10_000),
    emitted=st.integers(0, 2**32),
    proposed=st.integers(0, 2**32),
    accepted=st.integers(0, 2**32),
    draft_ms=st.floats(),
    verify_ms=st.floats(),
    overhead_ms=st.floats(),
    plain_step_ms=st.none() | st.floats(),
    tried=st.integers(0, 2**32),
    plain_steps=st.integers(0, 100),
    width=st.integers(0, 2**32),
    depth_tokens=st.integers(0, 2**32),
)


@settings(deadline=None)
@given(st.lists(bursts, min_size=1, max_size=12))
def test_evidence_is_made_of_numbers_whatever_the_bursts(samples: list[ProfileSample]) -> None:
    profile = Profile()
    for each in samples:
        profile = profile.with_sample(each, probe_means_kept=8, now_s=T0)
    weighed = weigh(profile, CONFIG.verdict)
    evidence = weighed.evidence
    assert all(math.isfinite(value) and value >= 0 for value in dataclasses.astuple(evidence))
    assert evidence.speedup_low <= evidence.speedup <= evidence.speedup_high
    assert 1 <= evidence.traffic_kinds <= len(samples)
    assert (weighed.speedup is None) == (evidence.speedup == 0.0)


situations = st.builds(
    Situation,
    width=st.integers(1, 9),
    depth_tokens=st.integers(1, 5000),
    min_emitted_tokens=st.integers(0, 20),
    eligible=st.sampled_from([True, True, True, False]),
    max_draft_width=st.sampled_from([0, 0, 0, 1, 2, 5]),
)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Lane, random.Random]:
    verdict = draw(st.sampled_from([None, Verdict.ENABLE, Verdict.DECLINE]))
    policy = MtpPolicy.start(
        KEY,
        force=draw(st.sampled_from([None, None, None, True, False])),
        adaptive=draw(st.sampled_from([True, True, True, False])),
        static_default=draw(st.booleans()),
        hint=Hint(KEY, verdict, 0.5, 4) if verdict else None,
        config=CONFIG,
        now_s=T0,
    )
    if draw(st.sampled_from([True, False, False])):
        policy.pin(Pin(draw(st.booleans()), "why", "who", T0, T0 + draw(st.floats(0.0, 2000.0))))
    kind = draw(st.sampled_from(["mtp_head", "mtp_head", "mtp_head", ""]))
    lane = Lane(policy, dataclasses.replace(CAPABILITIES, drafter_kind=kind), COSTS, CONFIG)
    return lane, random.Random(draw(seeds))


def run_burst(lane: Lane, situation: Situation, sequence: int, now_s: float, source: random.Random) -> BurstOutcome:
    grant = lane.decide(situation, now_s)
    steps = []
    for _ in range(grant.max_steps):
        kept = source.randint(0, grant.draft_width - 1) if grant.mode.speculates else 0
        ms = source.uniform(50.0, 200.0)
        excluded = grant.mode is Mode.PINNED or not situation.eligible
        accepted = tuple(situation.width if i < kept else 0 for i in range(grant.draft_width - 1))
        emitted, proposed = situation.width * (kept + 1), situation.width * (grant.draft_width - 1)
        steps.append(
            StepRecord(
                grant.mode,
                grant.draft_width,
                situation.width,
                situation.depth_tokens,
                emitted,
                proposed,
                accepted,
                0.0,
                ms,
                0.0,
                ms,
                excluded,
            )
        )
    outcome = BurstOutcome("", sequence, tuple(steps), 0)
    lane.observe(outcome, now_s)
    return outcome


@settings(max_examples=60, deadline=None)
@given(worlds(), st.lists(st.tuples(situations, st.floats(0.0, 300.0)), min_size=1, max_size=40))
def test_explaining_changes_nothing_and_agrees_with_deciding(
    world: tuple[Lane, random.Random], story: list[tuple[Situation, float]]
) -> None:
    (lane, source), now_s = world, T0
    for sequence, (situation, wait_s) in enumerate(story, start=1):
        now_s += wait_s
        before = frozen(lane)
        rules, preview = lane.explain(situation, now_s), lane.preview(situation, now_s)
        assert frozen(lane) == before
        run_burst(lane, situation, sequence, now_s, source)
        grant = lane.last_grant
        assert grant == preview
        assert grant is not None
        (decided,) = (rule for rule in rules if rule.decided)
        assert decided.answer == grant.explanation
        assert ("depth" in {rule.rule for rule in rules}) == grant.mode.speculates
        assert all(rule.answer and all(map(math.isfinite, rule.numbers.values())) for rule in rules)


@settings(max_examples=25, deadline=None)
@given(seeds, st.lists(situations, min_size=1, max_size=40))
def test_replaying_a_trace_gives_the_same_answer_every_time(seed: int, story: list[Situation]) -> None:
    source, lane = random.Random(seed), Lane(start(), CAPABILITIES, COSTS, CONFIG)
    outcomes = [run_burst(lane, situation, i, T0, source) for i, situation in enumerate(story, start=1)]
    results = [
        replay(key=KEY, capabilities=CAPABILITIES, costs=COSTS, outcomes=outcomes, config=CONFIG) for _ in range(2)
    ]
    assert results[0] == results[1]
    assert len(results[0].steps) == sum(len(outcome.steps) for outcome in outcomes)
    assert results[0].tokens == sum(step.emitted for outcome in outcomes for step in outcome.steps)


def frozen(lane: Lane) -> bytes:
    """Everything a lane and its policy hold, to the last bit."""
    return pickle.dumps(pickle.loads(pickle.dumps(lane)))
