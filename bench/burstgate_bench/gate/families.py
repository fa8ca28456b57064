"""The families of workloads: each a function from a source of chance to a recipe.

Together they hold every step-cost model, acceptance process and kind of traffic that is known to fool a
policy. Ranges are wide on purpose: a policy that is tuned to a point of one of them loses at another.
"""

from burstgate_bench.gate import costs, traffic
from burstgate_bench.gate.costs import StepCosts
from burstgate_bench.gate.machine import (
    Machine,
    compiling,
    correlated_noise,
    drifting,
    iid_noise,
    throttling,
    with_stalls,
)
from burstgate_bench.gate.recipe import Family, Recipe, changing, collapsing, one_kind, plain_ms
from burstgate_bench.gate.texts import KINDS, Kind, Random, code, enumeration, hopeless, prose


def single_stream(random: Random) -> Recipe:
    """OpenBLAS, one stream, all texts of one kind."""
    return Recipe(
        Machine(costs.openblas(unit_ms=_unit(random), depth_ms=0.01), _noise(random)),
        (_any(random),),
        one_kind(1),
        traffic.single_stream,
    )


def kind_changes(random: Random) -> Recipe:
    """OpenBLAS, one stream whose kind changes every 200 tokens."""
    kinds = [enumeration(random), code(random), prose(random)]
    random.shuffle(kinds)
    return Recipe(
        Machine(costs.openblas(unit_ms=_unit(random), depth_ms=0.01), _noise(random)),
        tuple(kinds),
        changing(3, 200),
        traffic.single_stream,
    )


def reference_blas(random: Random) -> Recipe:
    """A verify of K rows costs K steps: plain always wins."""
    return Recipe(
        Machine(costs.reference_blas(unit_ms=_unit(random)), _noise(random)),
        (_any(random), _any(random)),
        one_kind(2),
        traffic.single_stream if random.random() < 0.5 else traffic.streams(int(random.choice((2, 4)))),
    )


def nvidia_cliff(random: Random) -> Recipe:
    """4-bit on NVIDIA: dear from 2 to 7 rows, cheap at 8 again; one to four streams."""
    model = costs.nvidia_4bit(random.uniform(0.5, 0.9), random.uniform(0.17, 0.46), unit_ms=_unit(random))
    return Recipe(
        Machine(model, _noise(random)),
        (_any(random), _any(random)),
        one_kind(2),
        traffic.streams(int(random.choice((1, 2, 4)))),
    )


def bursts_constant(random: Random) -> Recipe:
    """A round costs the same whatever K; acceptance comes in bursts of some ten tokens."""
    kind = Kind(
        "bursts",
        random.uniform(0.2, 0.5),
        random.uniform(0.9, 1.0),
        burst_rate=random.uniform(0.85, 0.98),
        burst_tokens=random.uniform(15.0, 60.0),
    )
    return Recipe(
        Machine(costs.constant(random.uniform(1.05, 2.2), unit_ms=_unit(random)), _noise(random)),
        (kind,),
        one_kind(1),
        traffic.single_stream,
    )


def collapse_linear(random: Random) -> Recipe:
    """Every row costs the same; the drafter loses the text for a thousand tokens or more, and finds it again."""
    good = code(random) if random.random() < 0.5 else enumeration(random)
    return Recipe(
        Machine(costs.linear(random.uniform(0.05, 0.4), unit_ms=_unit(random)), _noise(random)),
        (good, hopeless(random)),
        collapsing(int(random.integers(3000, 8000)), random.uniform(0.25, 0.6)),
        traffic.single_stream,
    )


def agent_apple(random: Random) -> Recipe:
    """Apple GPUs in an agent loop: short answers in growing contexts."""
    model = costs.apple(_fit(random), unit_ms=_unit(random), depth_ms=random.uniform(0.0005, 0.003))
    return Recipe(Machine(model, _noise(random)), (_any(random), _any(random)), one_kind(2), traffic.agent_loop)


def joins_fixture(random: Random) -> Recipe:
    """A published fixture with a cliff between 8 and 12 rows; streams join and leave."""
    kind = Kind("fixture", random.uniform(0.62, 0.8), random.uniform(0.65, 0.95))
    return Recipe(
        Machine(costs.qwen_gb10(unit_ms=_unit(random)), _noise(random)),
        (kind, _any(random)),
        one_kind(2),
        traffic.joins_and_leaves,
        cap=4,
    )


def short_requests_fixture(random: Random) -> Recipe:
    """A published fixture of a block drafter, where any round costs half a plain step more; short requests."""
    kinds = (code(random), prose(random)) if random.random() < 0.5 else (_any(random), _any(random))
    return Recipe(
        Machine(costs.glm_single(unit_ms=_unit(random)), _noise(random)), kinds, one_kind(2), traffic.short_requests
    )


def contexts(random: Random) -> Recipe:
    """OpenBLAS, contexts of 300 and 3000 tokens in turn."""
    return Recipe(
        Machine(costs.openblas(unit_ms=_unit(random), depth_ms=random.uniform(0.005, 0.03)), _noise(random)),
        (_any(random),),
        one_kind(1),
        traffic.alternating_contexts,
    )


def flapping(random: Random) -> Recipe:
    """Four streams and a fifth that comes and goes every few steps."""
    model = costs.openblas(unit_ms=_unit(random)) if random.random() < 0.5 else _rows_model(random)
    return Recipe(Machine(model, _noise(random)), (_any(random),), one_kind(1), traffic.flapping)


def wide(random: Random) -> Recipe:
    """Sixteen or thirty-two streams."""
    return Recipe(
        Machine(_rows_model(random), _noise(random)),
        (_any(random), _any(random)),
        one_kind(2),
        traffic.streams(int(random.choice((16, 32)))),
    )


def drift(random: Random) -> Recipe:
    """The machine, and what rows cost on it, change in slow waves."""
    model = costs.linear(random.uniform(0.1, 0.4), unit_ms=_unit(random))
    return Recipe(
        Machine(model, _noise(random), drifting(random, plain_ms(model))),
        (_any(random),),
        one_kind(1),
        traffic.single_stream,
    )


def thermal(random: Random) -> Recipe:
    """The machine throttles after a while, wide verifies most, and recovers now and then."""
    model = (
        costs.apple(_fit(random), unit_ms=_unit(random))
        if random.random() < 0.5
        else costs.openblas(unit_ms=_unit(random))
    )
    return Recipe(
        Machine(model, _noise(random), throttling(random, plain_ms(model))),
        (_any(random),),
        one_kind(1),
        traffic.single_stream,
    )


def compilation(random: Random) -> Recipe:
    """The first step of each width bucket and K is 5 to 15 times slower, single steps stall, streams come and go."""
    noise = with_stalls(random, _noise(random), random.uniform(0.0005, 0.003), random.uniform(5.0, 15.0))
    return Recipe(
        Machine(_rows_model(random), noise, compile_factors=compiling(random)),
        (_any(random), _any(random)),
        one_kind(2),
        traffic.joins_and_leaves,
    )


def no_table(random: Random) -> Recipe:
    """The lane knows no cost."""
    return Recipe(
        Machine(_any_model(random), _noise(random)),
        (_any(random),),
        one_kind(1),
        traffic.single_stream,
        table_error=None,
    )


def wrong_table(random: Random) -> Recipe:
    """The lane's cost table is off by a third or more for each K."""
    return Recipe(
        Machine(_any_model(random), _noise(random)),
        (_any(random),),
        one_kind(1),
        traffic.single_stream,
        table_error=0.5,
        table_wrong=True,
    )


def thinking(random: Random) -> Recipe:
    """Answers open with a thought, during which the row may not speculate."""
    return Recipe(
        Machine(_any_model(random), _noise(random)), (_any(random), _any(random)), one_kind(2), traffic.thinking
    )


def equal_modes(random: Random) -> Recipe:
    """Plain and the best K cost the same for each token, under noise of a tenth that lasts for sixteen steps."""
    kind = code(random) if random.random() < 0.5 else prose(random)
    best = int(random.integers(2, 5))
    model = costs.equal_modes(best, kind.expected_tokens(), unit_ms=_unit(random))
    return Recipe(
        Machine(model, correlated_noise(random, 0.1)), (kind,), one_kind(1), traffic.single_stream, steps_factor=5.0
    )


FAMILIES: dict[str, Family] = {
    family.__name__: family
    for family in (
        single_stream,
        kind_changes,
        reference_blas,
        nvidia_cliff,
        bursts_constant,
        collapse_linear,
        agent_apple,
        joins_fixture,
        short_requests_fixture,
        contexts,
        flapping,
        wide,
        drift,
        thermal,
        compilation,
        no_table,
        wrong_table,
        thinking,
        equal_modes,
    )
}


def _any(random: Random) -> Kind:
    return KINDS[int(random.integers(len(KINDS)))](random)


def _fit(random: Random) -> str:
    return str(random.choice(list(costs.APPLE_FITS)))


def _unit(random: Random) -> float:
    """Machines differ in speed by an order of magnitude; what pays does not depend on it."""
    return float(10.0 ** random.uniform(-0.5, 0.5))


def _noise(random: Random) -> list[float]:
    deviation = random.uniform(0.01, 0.1)
    return iid_noise(random, deviation) if random.random() < 0.5 else correlated_noise(random, deviation)


def _rows_model(random: Random) -> StepCosts:
    """A machine that many rows can fill."""
    if random.random() < 0.5:
        return costs.openblas(unit_ms=_unit(random))
    return costs.linear(random.uniform(0.01, 0.08), unit_ms=_unit(random))


def _any_model(random: Random) -> StepCosts:
    unit = _unit(random)
    models = (
        costs.openblas(unit_ms=unit),
        costs.linear(random.uniform(0.05, 0.5), unit_ms=unit),
        costs.constant(random.uniform(1.05, 2.0), unit_ms=unit),
        costs.nvidia_4bit(random.uniform(0.5, 0.9), random.uniform(0.17, 0.46), unit_ms=unit),
        costs.apple(_fit(random), unit_ms=unit),
        costs.reference_blas(unit_ms=unit),
    )
    return models[int(random.integers(len(models)))]
