"""Every primitive of Opstage, by family."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from ..primitive import Primitive

FAMILIES = (
    "elementwise",
    "rounding",
    "transcendental",
    "activation",
    "logic",
    "reduction",
    "sequence",
    "layout",
    "slicing",
    "indexing",
    "linalg",
    "grouped",
    "solving",
    "determinants",
    "factorizations",
    "fourier",
    "convolution",
    "pooling",
    "normalization",
    "attention",
    "biased_attention",
    "loss",
    "random",
)
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
