"""Every primitive of Opstage, by family."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from .activation import RELU, RELU_GRAD
from .collective import CollectiveOps
from .elementwise import ABS, ADD, MAXIMUM, MINIMUM, MUL, NEG, SCALE, SUB
from .logic import CAST, EQUAL, LESS, LESS_EQUAL, LOGICAL_AND, LOGICAL_NOT, SELECT
from .primitive import Primitive
from .protocol import Ops

FAMILIES = tuple(base.__module__.rpartition(".")[2] for base in Ops.__bases__ if base is not CollectiveOps)
"""The families whose primitives have kernels."""


@cache
def primitives() -> dict[str, Primitive]:
    """Return all primitives by name."""
    found: dict[str, Primitive] = {}
    for family in (*FAMILIES, "collective"):
        for value in vars(import_module(f".{family}", __package__)).values():
            if isinstance(value, Primitive):
                known = found.setdefault(value.name, value)
                assert known is value, f"two primitives are called {value.name}"
    return found


@cache
def own() -> frozenset[Primitive]:
    """Return the same as a set: those that always do the same, whatever Python state another package's read."""
    return frozenset(primitives().values())


# Ops that are cheaper to recompute than to store and load -------------------------------------------------------------

CHEAP = frozenset({
    ABS, ADD, CAST, EQUAL, LESS, LESS_EQUAL, LOGICAL_AND, LOGICAL_NOT, MAXIMUM, MINIMUM, MUL, NEG, RELU, RELU_GRAD,
    SCALE, SELECT, SUB,
})  # fmt: skip
"""Ops of one or two cycles, far less than the latency of memory."""
