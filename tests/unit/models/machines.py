"""A machine on which every cell of a cost table takes what a test says, on a clock of its own."""

from collections.abc import Callable

from burstgate_decode.models.calibration_plan import Cell, Timing

STEP_MS = 50.0
ROW_MS = 5.0
DRAFT_MS = 3.0


def cost(cell: Cell) -> Timing:
    """A step, a part for each further row of the verify, and all rows' drafts one token after another."""
    return Timing(STEP_MS + ROW_MS * (cell.width * cell.draft_width - 1), DRAFT_MS * (cell.draft_width - 1))


class Machine:
    """Runs cells and remembers in which order."""

    def __init__(
        self, cost: Callable[[Cell], Timing] = cost, *, slower: float = 1.0, first_run_ms: float = 0.0
    ) -> None:
        self.now_ms = 1000.0
        self.ran: list[Cell] = []
        self._cost = cost
        self._slower = slower
        self._first_run_ms = first_run_ms

    def clock(self) -> float:
        return self.now_ms

    def run(self, cell: Cell) -> Timing:
        verify_ms, draft_ms = self._cost(cell)
        verify_ms = self._slower * verify_ms + (0.0 if cell in self.ran else self._first_run_ms)
        self.ran.append(cell)
        self.now_ms += verify_ms + self._slower * draft_ms
        return Timing(verify_ms, self._slower * draft_ms)
