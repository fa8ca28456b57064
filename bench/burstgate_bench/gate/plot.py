"""Draws the scores of a tournament."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from burstgate_bench.gate.tournament import Match

_COLOURS = {"default": "#1f6feb", "seed": "#d9822b", "bandit": "#7d8590"}
_BAR = 0.97
"""What the median has to reach."""
_LEFT = 0.55
"""Scores below this are drawn at the edge, so that a few of them do not squeeze the rest."""
_MOST_RIGHT = 1.25


def save_plot(matches: Sequence[Match], file: Path) -> None:
    """Writes the distribution of scores by family for the default policy, the plain gate and the bandit.

    The file's suffix chooses the format. Boxes span the quartiles, whiskers the 5th to 95th percentile.
    """
    families = list(dict.fromkeys(one.family for one in matches))
    arms = [arm for arm in _COLOURS if any(arm in one.scores for one in matches)]
    # Without a salt the names inside an SVG, and so the whole file, would differ from run to run.
    with mpl.rc_context({"svg.hashsalt": "gate", "font.size": 9}):
        figure = Figure(figsize=(9.0, 1.4 + 0.4 * len(families)), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        for number, arm in enumerate(arms):
            scores = [
                [max(one.scores[arm].score, _LEFT) for one in matches if one.family == family and arm in one.scores]
                for family in families
            ]
            offset = (number - (len(arms) - 1) / 2) * 0.27
            boxes = axes.boxplot(
                scores,
                positions=[row + offset for row in range(len(families))],
                widths=0.22,
                whis=(5, 95),
                orientation="horizontal",
                patch_artist=True,
                showfliers=False,
                medianprops={"color": "black", "linewidth": 1.2},
            )
            for box in boxes["boxes"]:
                box.set(facecolor=_COLOURS[arm], edgecolor=_COLOURS[arm], alpha=0.75)
        axes.axvline(1.0, color="black", linewidth=0.8)
        axes.axvline(_BAR, color="black", linewidth=0.8, linestyle=":")
        axes.set_yticks(range(len(families)), families)
        axes.invert_yaxis()
        axes.set_xlim(_LEFT - 0.01, min(max(1.05, *(axes.get_xlim())), _MOST_RIGHT))
        axes.grid(axis="x", linewidth=0.4, alpha=0.6)
        axes.set_xlabel(f"tokens per second / best fixed mode in hindsight (dotted: {_BAR})")
        axes.legend(
            handles=[Patch(color=_COLOURS[arm], alpha=0.75, label=arm) for arm in arms],
            loc="lower left",
            framealpha=0.95,
        )
        metadata = {"Date": None} if file.suffix == ".svg" else None
        figure.savefig(file, metadata=metadata, dpi=110)
