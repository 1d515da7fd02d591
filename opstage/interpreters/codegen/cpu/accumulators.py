"""How sums and greatest elements are taken on the CPU: so that loops are vector instructions, and sums stay exact."""

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
from .words import WorkerScratch

BLOCK = 32
"""Rows that are added in a running sum of their own dtype, column by column. The sums of blocks are added in float64:
else a sum over n rows would be rounded n times in a row."""

RUN, STRIDED_RUN = 1024, 64
"""Elements of a row that are added in running sums, many of them at a time; the sums of runs are added in float64.
Where a row's elements are not neighbours there are no vector instructions, and so one running sum alone."""


class Accumulating(NamedTuple):
    """Lines that take a sum or a greatest element.

    begin, end              before all and after all
    begin_run, end_run      before each run or block, and after it
    add                     for one more
    """

    begin: list[str]
    begin_run: list[str]
    add: Callable[[str], list[str]]
    end_run: list[str]
    end: list[str]


def of_row(accumulator: Accumulator, row: RowLocals, constants: Constants, *, runs: bool) -> Accumulating:
    """A sum along a row, in `runs` or not, or the greatest element of one."""
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
    """By integers of the order of floats, see `namespace.py`; whether there is a nan is noted beside."""
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
    accumulator: Accumulator, extent: int, memory: KernelMemory, constants: Constants
) -> tuple[WorkerScratch, Accumulating]:
    """A sum over rows: in a row of the worker's own, and that of its blocks in one of float64 beside it."""
    name, dtype = accumulator.local.name, accumulator.local.dtype
    kind, zero = dtype_name(dtype), constants(0, dtype)
    nbytes = rounded(extent * dtype.itemsize)
    both = WorkerScratch(f"c{name}", nbytes + rounded(extent * 8))
    part = memory.scratch(both.key, kind, both.nbytes, "j")
    memory.head.append(f"d{name}_at = c{name}_at + {memory.word(nbytes)}")
    whole = memory.elements(f"d{name}", "float64", "j", written=True)
    total = f"({memory.load(whole)} + {memory.load(part)})"
    return both, Accumulating(
        _along([memory.store(part, zero), memory.store(whole, "0.0")]),
        [],
        lambda value: [memory.store(part, f"({memory.load(part)} + {value})")],
        _along([memory.store(whole, total), memory.store(part, zero)]),
        _along([memory.store(part, f"{kind}{total}")]),
    )


def _along(lines: list[str]) -> list[str]:
    return ["for j in range(n):", *indented(lines)]
