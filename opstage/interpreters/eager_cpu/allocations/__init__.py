"""Which memory the kernels of eager_cpu take: their results, which of them are views, and what they work in.

A rule tells it from types and strides, so that a step's memory is known before there is an array. Each family file has
`ALLOCATIONS` for the NumPy kernels and `FAST_ALLOCATIONS` for those that take their place, beside the tables of
`kernels/`, whose file of the same name it speaks of.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from types import MappingProxyType

from ....ops.catalogue import FAMILIES
from ....ops.primitive import Primitive
from .allocation import Allocation, Call, Operand, Result, Rule


@cache
def allocation_table(fast: bool) -> Mapping[Primitive, Rule]:
    """The rules for programs of floats, with or without fast kernels."""
    table: dict[Primitive, Rule] = {}
    for family in FAMILIES:
        module = import_module(f".{family}", __package__)
        table.update(module.ALLOCATIONS)
        if fast:
            table.update(getattr(module, "FAST_ALLOCATIONS", {}))
    return MappingProxyType(table)


__all__ = ["Allocation", "Call", "Operand", "Result", "Rule", "allocation_table"]
