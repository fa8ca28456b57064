"""The faults of this package: what went wrong with a model or its BLAS, and what to do about it.

Each carries a reason in UPPER_SNAKE for machines and a message for people. They know nothing of gRPC.
"""

from __future__ import annotations


class ModelError(Exception):
    """A model cannot be prepared, read or used."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class BlasError(ModelError):
    """The BLAS that was asked for cannot be put under MLX."""
