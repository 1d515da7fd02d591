"""Rows of numbers as vectors of 64 bytes, by address: copy, add and clear rows of any length.

A mask is an integer with bit i set for each active lane i; memory of inactive lanes is not accessed. LLVM selects the
processor's instructions: one with AVX-512, several elsewhere.

Like `memory`, this module is imported only to compile.
"""

# mypy: disable-error-code="attr-defined, no-untyped-call, no-untyped-def"
from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

from llvmlite import ir

from .frontend import declared, intrinsic
from .frontend.kinds import FLOAT32, FLOAT64, INT64, VOID
from .registers import BYTES, masked, splatted


@cache
def vectors(dtype: str) -> SimpleNamespace:
    """Return the functions for numbers of one dtype; addresses are in bytes, counts and strides in numbers.

    between(lo, hi)                   the mask of lanes lo … hi, each clipped to what there is
    move(to, source, read, write)     lanes of `read` are copied, other lanes of `write` become 0
    accumulate(to, source, mask)      to += source
    accumulate_number(to, x, mask)    to += x in every lane
    load(source), store(to, x)        one number
    copy_row, add_row, shift_row, clear_row      n numbers, one after another
    """
    lanes = BYTES // (4 if dtype == "float32" else 8)
    size = BYTES // lanes
    real = FLOAT32 if dtype == "float32" else FLOAT64
    scalar = real.type
    vector = ir.VectorType(scalar, lanes)
    flags = ir.VectorType(ir.IntType(1), lanes)
    suffix = f"v{lanes}f{size * 8}"

    def load_masked(builder: Any, address: Any, mask: Any) -> Any:
        kind = ir.FunctionType(vector, [vector.as_pointer(), ir.IntType(32), flags, vector])
        function = declared(builder, kind, f"llvm.masked.load.{suffix}.p0")
        pointer = builder.inttoptr(address, vector.as_pointer())
        return builder.call(function, [pointer, ir.Constant(ir.IntType(32), size), mask, ir.Constant(vector, None)])

    def store_masked(builder: Any, value: Any, address: Any, mask: Any) -> None:
        kind = ir.FunctionType(ir.VoidType(), [vector, vector.as_pointer(), ir.IntType(32), flags])
        function = declared(builder, kind, f"llvm.masked.store.{suffix}.p0")
        pointer = builder.inttoptr(address, vector.as_pointer())
        builder.call(function, [value, pointer, ir.Constant(ir.IntType(32), size), mask])

    @intrinsic(VOID, INT64, INT64, INT64, INT64)
    def move(builder, to, source, read, write):
        value = load_masked(builder, source, masked(builder, read, lanes))
        store_masked(builder, value, to, masked(builder, write, lanes))

    @intrinsic(VOID, INT64, INT64, INT64)
    def accumulate(builder, to, source, mask):
        chosen = masked(builder, mask, lanes)
        total = builder.fadd(load_masked(builder, to, chosen), load_masked(builder, source, chosen))
        store_masked(builder, total, to, chosen)

    @intrinsic(VOID, INT64, real, INT64)
    def accumulate_number(builder, to, number, mask):
        chosen = masked(builder, mask, lanes)
        total = builder.fadd(load_masked(builder, to, chosen), splatted(builder, number, vector))
        store_masked(builder, total, to, chosen)

    @intrinsic(real, INT64)
    def load(builder, source):
        return builder.load(builder.inttoptr(source, scalar.as_pointer()))

    @intrinsic(VOID, INT64, real)
    def store(builder, to, value):
        builder.store(value, builder.inttoptr(to, scalar.as_pointer()))

    def between(lo, hi):
        lo, hi = min(max(lo, 0), lanes), min(max(hi, 0), lanes)
        return ((1 << hi) - 1) & ~((1 << lo) - 1)

    def copy_row(to, source, n):
        for i in range(0, n, lanes):
            mask = between(0, n - i)
            move(to + i * size, source + i * size, mask, mask)

    def add_row(to, source, n):
        for i in range(0, n, lanes):
            accumulate(to + i * size, source + i * size, between(0, n - i))

    def shift_row(to, number, n):
        for i in range(0, n, lanes):
            accumulate_number(to + i * size, number, between(0, n - i))

    def clear_row(to, n):
        for i in range(0, n, lanes):
            move(to + i * size, to, 0, between(0, n - i))

    return SimpleNamespace(
        lanes=lanes, size=size, between=between, move=move, accumulate=accumulate,
        accumulate_number=accumulate_number, load=load, store=store,
        copy_row=copy_row, add_row=add_row, shift_row=shift_row, clear_row=clear_row,
    )  # fmt: skip
