"""A mean that forgets: recent values weigh most, and a prior stands behind the first ones. Pure."""


class ForgettingMean:
    """Mean of values that fade with each one that follows."""

    __slots__ = ("_decay", "_seen", "_total")

    def __init__(self, decay: float) -> None:
        """`decay`: what a value is still worth one value later."""
        self._decay = decay
        self._total = 0.0
        self._seen = 0.0

    def add(self, value: float) -> None:
        """Takes a value."""
        self._total = self._total * self._decay + value
        self._seen = self._seen * self._decay + 1.0

    def fade(self) -> None:
        """Forgets as with a value, and takes none."""
        self._total *= self._decay
        self._seen *= self._decay

    def estimate(self, prior: float, weight: float) -> float:
        """The mean, with `prior` counted as `weight` values; the two must not both be nothing."""
        return (self._total + weight * prior) / (self._seen + weight)
