"""Runs of numbers as vectors of 64 bytes, by address: what copies, adds and clears a row whose ends are ragged.

A mask is an integer whose bit i says whether lane i takes part; memory at lanes that do not is not touched. LLVM makes
of it what the processor has: one instruction with AVX-512, several elsewhere.

As in `memory`, these exist once numba is imported, so this module is imported by what compiles.
"""

# mypy: disable-error-code="attr-defined, call-arg, no-untyped-call, no-untyped-def, untyped-decorator"
from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

BYTES = 64
_WORD = ir.IntType(64)


@cache
def vectors(dtype: str) -> SimpleNamespace:
    """The functions for numbers of one dtype; addresses are in bytes, counts and strides in numbers.

    between(lo, hi)                   the mask of lanes lo … hi, each clipped to what there is
    move(to, source, read, write)     lanes of `read` are copied, other lanes of `write` become 0
    accumulate(to, source, mask)      to += source
    accumulate_number(to, x, mask)    to += x in every lane
    load(source), store(to, x)        one number
    copy_row, add_row, shift_row, clear_row      n numbers, one after another
    """
    lanes = BYTES // (4 if dtype == "float32" else 8)
    size = BYTES // lanes
    scalar = ir.FloatType() if dtype == "float32" else ir.DoubleType()
    real = getattr(types, dtype)
    vector = ir.VectorType(scalar, lanes)
    flags = ir.VectorType(ir.IntType(1), lanes)
    suffix = f"v{lanes}f{size * 8}"

    def masked(builder: Any, mask: Any) -> Any:
        return builder.bitcast(builder.trunc(mask, ir.IntType(lanes)), flags)

    def load_masked(builder: Any, address: Any, mask: Any) -> Any:
        kind = ir.FunctionType(vector, [vector.as_pointer(), ir.IntType(32), flags, vector])
        function = _declared(builder, kind, f"llvm.masked.load.{suffix}.p0")
        pointer = builder.inttoptr(address, vector.as_pointer())
        return builder.call(function, [pointer, ir.Constant(ir.IntType(32), size), mask, ir.Constant(vector, None)])

    def store_masked(builder: Any, value: Any, address: Any, mask: Any) -> None:
        kind = ir.FunctionType(ir.VoidType(), [vector, vector.as_pointer(), ir.IntType(32), flags])
        function = _declared(builder, kind, f"llvm.masked.store.{suffix}.p0")
        pointer = builder.inttoptr(address, vector.as_pointer())
        builder.call(function, [value, pointer, ir.Constant(ir.IntType(32), size), mask])

    @intrinsic
    def move(typing, to, source, read, write):
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            to, source, read, write = values
            value = load_masked(builder, source, masked(builder, read))
            store_masked(builder, value, to, masked(builder, write))
            return context.get_dummy_value()

        return types.void(types.intp, types.intp, types.intp, types.intp), generate

    @intrinsic
    def accumulate(typing, to, source, mask):
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            to, source, mask = values
            chosen = masked(builder, mask)
            total = builder.fadd(load_masked(builder, to, chosen), load_masked(builder, source, chosen))
            store_masked(builder, total, to, chosen)
            return context.get_dummy_value()

        return types.void(types.intp, types.intp, types.intp), generate

    @intrinsic
    def accumulate_number(typing, to, number, mask):
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            to, number, mask = values
            chosen = masked(builder, mask)
            total = builder.fadd(load_masked(builder, to, chosen), splat(builder, number, vector))
            store_masked(builder, total, to, chosen)
            return context.get_dummy_value()

        return types.void(types.intp, real, types.intp), generate

    @intrinsic
    def load(typing, source):
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            return builder.load(builder.inttoptr(values[0], scalar.as_pointer()))

        return real(types.intp), generate

    @intrinsic
    def store(typing, to, number):
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            builder.store(values[1], builder.inttoptr(values[0], scalar.as_pointer()))
            return context.get_dummy_value()

        return types.void(types.intp, real), generate

    @njit
    def between(lo, hi):
        lo, hi = min(max(lo, 0), lanes), min(max(hi, 0), lanes)
        return ((1 << hi) - 1) & ~((1 << lo) - 1)

    @njit
    def copy_row(to, source, n):
        for i in range(0, n, lanes):
            mask = between(0, n - i)
            move(to + i * size, source + i * size, mask, mask)

    @njit
    def add_row(to, source, n):
        for i in range(0, n, lanes):
            accumulate(to + i * size, source + i * size, between(0, n - i))

    @njit
    def shift_row(to, number, n):
        for i in range(0, n, lanes):
            accumulate_number(to + i * size, number, between(0, n - i))

    @njit
    def clear_row(to, n):
        for i in range(0, n, lanes):
            move(to + i * size, to, 0, between(0, n - i))

    return SimpleNamespace(
        lanes=lanes, size=size, between=between, move=move, accumulate=accumulate,
        accumulate_number=accumulate_number, load=load, store=store,
        copy_row=copy_row, add_row=add_row, shift_row=shift_row, clear_row=clear_row,
    )  # fmt: skip


def splat(builder: Any, number: Any, vector: Any) -> Any:
    """A vector with the number in every lane."""
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), number, ir.Constant(ir.IntType(32), 0))
    order = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), None)
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), order)


def _declared(builder: Any, kind: Any, name: str) -> Any:
    module = builder.module
    return module.globals.get(name) or ir.Function(module, kind, name)
