"""Sums and maxima on the CPU, vectorized and with accurate sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ....ops.types import dtype_name
from ..formulas import Constants
from ..loop import Accumulator
from ..primitives import ROW_SUM
from ..printing import indented
from .memory import KernelMemory, rounded
from .row_locals import RowLocals
from .words import Scratch

BLOCK = 32
"""Rows per running sum of a column in its own dtype. The block sums are added in float64; otherwise a sum of n rows
would accumulate n rounding errors."""

RUN, STRIDED_RUN = 1024, 64
"""Elements of a row per vectorized running sum; the sums of runs are added in float64. Strided rows are not vectorized
and have a single running sum per run."""


class Accumulating(NamedTuple):
    """Lines that compute a sum or maximum.

    begin, end              before and after all elements
    begin_run, end_run      before and after each run or block
    add                     for one element
    """

    begin: list[str]
    begin_run: list[str]
    add: Callable[[str], list[str]]
    end_run: list[str]
    end: list[str]


def of_row(accumulator: Accumulator, row: RowLocals, constants: Constants, *, runs: bool) -> Accumulating:
    """Return the lines for a sum along a row, in `runs` or not, or for its maximum."""
    name, dtype = accumulator.local.name, accumulator.local.dtype
    kind = dtype_name(dtype)
    if accumulator.primitive is not ROW_SUM:
        return _greatest(name, kind, row)
    zero = constants(0, dtype)
    if not runs:
        begin = [row.set(name, kind, zero)]
        return Accumulating(begin, [], lambda value: [row.set(name, kind, f"add({row.get(name)}, {value})")], [], [])
    whole, run = f"s{name}", f"r{name}"
    return Accumulating(
        [row.set(whole, "float64", "0.0")],
        [row.set(run, kind, zero)],
        lambda value: [row.set(run, kind, f"add({row.get(run)}, {value})")],
        [row.set(whole, "float64", f"{row.get(whole)} + {row.get(run)}")],
        [row.set(name, kind, f"{kind}({row.get(whole)})")],
    )


def _greatest(name: str, kind: str, row: RowLocals) -> Accumulating:
    """Return the lines for a maximum, on integers ordered like floats (see `namespace.py`); nans are tracked
    separately."""
    order = "int32" if kind == "float32" else "int64"
    greatest, unknown = f"m{name}", f"b{name}"

    def add(value: str) -> list[str]:
        return [
            f"o{name} = ordered_{kind}({value})",
            row.set(greatest, order, f"o{name} if o{name} > {row.get(greatest)} else {row.get(greatest)}"),
            row.set(unknown, "int64", f"{row.get(unknown)} | int64({value} != {value})"),
        ]

    begin = [row.set(greatest, order, f"least_{kind}"), row.set(unknown, "int64", "int64(0)")]
    found = f"unordered_{kind}({row.get(greatest)}) if {row.get(unknown)} == 0 else nan_{kind}"
    return Accumulating(begin, [], add, [], [row.set(name, kind, found)])


def of_columns(
    accumulator: Accumulator, extent: int, parts: int, memory: KernelMemory, constants: Constants
) -> tuple[Scratch, Accumulating]:
    """Return the lines for a sum over rows: for each part of the rows, a row of block sums in its scratch, and a
    float64 row of totals."""
    name, dtype = accumulator.local.name, accumulator.local.dtype
    kind, zero = dtype_name(dtype), constants(0, dtype)
    nbytes = rounded(extent * dtype.itemsize)
    both = Scratch(f"c{name}", nbytes + rounded(extent * 8), parts)
    part = memory.elements(both.key, kind, "j", written=True)
    addresses = [
        f"c{name}_at = {memory.word(both)} + part * {memory.word(both.nbytes)}",
        f"d{name}_at = c{name}_at + {memory.word(nbytes)}",
    ]
    whole = memory.elements(f"d{name}", "float64", "j", written=True)
    total = f"({memory.load(whole)} + {memory.load(part)})"
    return both, Accumulating(
        addresses + _along([memory.store(part, zero), memory.store(whole, "0.0")]),
        [],
        lambda value: [memory.store(part, f"({memory.load(part)} + {value})")],
        _along([memory.store(whole, total), memory.store(part, zero)]),
        _along([memory.store(part, f"{kind}{total}")]),
    )


def _along(lines: list[str]) -> list[str]:
    return ["for j in range(n):", *indented(lines)]
