"""Shows the result of a tournament to a person."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from burstgate_bench.gate.summary import Summary, by_family, is_fixed, overall
from burstgate_bench.gate.tournament import Match

_COLUMNS = (
    "median",
    "p10",
    "least",
    "x plain p5",
    "lost",
    "cold 64",
    "switches / 20k",
    "most",
    "wrong run",
    "wrong",
    "probes",
    "most",
)


def show(console: Console, matches: Sequence[Match]) -> None:
    """Prints every family and policy, then the medians of the fixed modes."""
    families = by_family(matches)
    arms = tuple(dict.fromkeys(arm for one in matches for arm in one.scores))
    every = {arm: summary for arm in arms if (summary := overall(matches, arm)) is not None}
    console.print(_policies({**families, "all": every}))
    console.print(_fixed({**families, "all": every}, [arm for arm in arms if is_fixed(arm)]))


def _policies(families: dict[str, dict[str, Summary]]) -> Table:
    table = Table(title="tokens per second against the best fixed mode in hindsight", title_justify="left")
    table.add_column("family")
    table.add_column("arm")
    for column in _COLUMNS:
        table.add_column(column, justify="right")
    for family, arms in families.items():
        name = family
        for arm, summary in arms.items():
            if not is_fixed(arm):
                table.add_row(name, arm, *_cells(summary))
                name = ""
        table.add_section()
    return table


def _fixed(families: dict[str, dict[str, Summary]], names: Sequence[str]) -> Table:
    table = Table(title="fixed modes: median against the best of them", title_justify="left")
    table.add_column("family")
    for name in names:
        table.add_column(name, justify="right")
    for family, arms in families.items():
        table.add_row(family, *(f"{arms[name].median:.3f}" if name in arms else "-" for name in names))
    return table


def _cells(summary: Summary) -> tuple[str, ...]:
    return (
        f"{summary.median:.3f}",
        f"{summary.p10:.3f}",
        f"{summary.least:.3f}",
        f"{summary.plain_p5:.3f}",
        f"{summary.lost:.1%}",
        f"{summary.cold_median:.2f}",
        f"{summary.switches_rate:.1f}",
        str(summary.switches_most),
        str(summary.longest_wrong),
        f"{summary.wrong_share:.1%}",
        f"{summary.probe_share:.1%}",
        f"{summary.probe_share_most:.1%}",
    )
