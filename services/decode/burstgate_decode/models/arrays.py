"""Typed reads of mlx arrays, whose own `item` and `tolist` say only that they return something. Each evaluates."""

from typing import cast

import mlx.core as mx


def ints(array: mx.array) -> list[int]:
    """The elements of `[L]`."""
    return cast("list[int]", array.tolist())


def floats(array: mx.array) -> list[float]:
    """The elements of `[L]`."""
    return cast("list[float]", array.tolist())


def int_rows(array: mx.array) -> list[list[int]]:
    """The rows of `[L, W]`."""
    return cast("list[list[int]]", array.tolist())


def float_rows(array: mx.array) -> list[list[float]]:
    """The rows of `[L, W]`."""
    return cast("list[list[float]]", array.tolist())


def as_int(array: mx.array) -> int:
    """The only element."""
    return cast("int", array.item())


def as_float(array: mx.array) -> float:
    """The only element."""
    return cast("float", array.item())
