"""Vectors of 64 bytes: as values of kernels, kept in registers between iterations, and as rows of numbers in memory."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

from llvmlite import ir

from .frontend import declared, intrinsic
from .frontend.types import FLOAT32, FLOAT64, INT64, VOID, ScalarKind

# In registers ---------------------------------------------------------------------------------------------------------

# A mask is an integer with bit i set for each active lane i; memory of inactive lanes is not accessed. LLVM selects
# the processor's instructions: one each with AVX-512, several elsewhere.
#
# Like `memory`, this module is imported only to compile.

# mypy: disable-error-code="attr-defined, no-untyped-call, no-untyped-def"


BYTES = 64
_I32, _I64 = ir.IntType(32), ir.IntType(64)


@cache
def vector_kind(dtype: str, lanes: int) -> ScalarKind:
    """Return the type of a vector of numbers."""
    scalar = {"float32": FLOAT32, "float64": FLOAT64, "int64": INT64}[dtype]
    return ScalarKind(f"{dtype} x {lanes}", ir.VectorType(scalar.type, lanes))


@cache
def registers(dtype: str) -> SimpleNamespace:
    """Return the functions for numbers of one dtype. Addresses are in bytes; `v` and `w` are vectors, `m` is a mask.

    load(a), store(a, v)          all lanes
    stream(a, v)                  all lanes, at an address that is a multiple of BYTES, past the caches
    load_some(a, m)               lanes of m, 0 elsewhere
    load_pairs(a, m)              every second number, at lanes of m
    load_all_pairs(a)             every second number
    load_apart(a, step, m)        numbers `step` bytes apart, at lanes of m
    store_some(a, v, m)           lanes of m
    splat(x), total(v)             x in every lane; the sum of all lanes
    add(v, w), divide(v, w), fma(v, w, u)        v + w; v / w; v·w + u
    rises(v, w)                   the mask of v > w or nan in v
    choose(m, v, w)               v at lanes of m, w elsewhere
    positions(p, step)            the int64s p, p + step, …, which have their own choose_ and store_some_
    """
    size = 4 if dtype == "float32" else 8
    lanes = BYTES // size
    scalar = ir.FloatType() if dtype == "float32" else ir.DoubleType()
    real, kind = FLOAT32 if dtype == "float32" else FLOAT64, vector_kind(dtype, lanes)
    vector, whole = ir.VectorType(scalar, lanes), ir.VectorType(_I64, lanes)
    flags, bits = ir.VectorType(ir.IntType(1), lanes), ir.IntType(lanes)
    address = INT64
    name = f"v{lanes}f{size * 8}"

    def flags_of(builder: Any, mask: Any) -> Any:
        return masked(builder, mask, lanes)

    def mask_of(builder: Any, chosen: Any) -> Any:
        return builder.zext(builder.bitcast(chosen, bits), _I64)

    def pointer(builder: Any, at: Any, to: Any = vector) -> Any:
        return builder.inttoptr(at, to.as_pointer())

    def masked_load(builder: Any, at: Any, chosen: Any) -> Any:
        function = ir.FunctionType(vector, [vector.as_pointer(), _I32, flags, vector])
        load = declared(builder, function, f"llvm.masked.load.{name}.p0")
        return builder.call(load, [pointer(builder, at), _I32(size), chosen, ir.Constant(vector, None)])

    def masked_store(builder: Any, at: Any, value: Any, chosen: Any, of: Any, label: str, align: int) -> None:
        function = ir.FunctionType(ir.VoidType(), [of, of.as_pointer(), _I32, flags])
        store = declared(builder, function, f"llvm.masked.store.{label}.p0")
        builder.call(store, [value, pointer(builder, at, of), _I32(align), chosen])

    def steps(builder: Any, first: Any, step: Any) -> Any:
        counted = ir.Constant(whole, list(range(lanes)))
        return builder.add(splatted(builder, first, whole), builder.mul(splatted(builder, step, whole), counted))

    @intrinsic(kind, address)
    def load(builder, at):
        return builder.load(pointer(builder, at), align=size)

    @intrinsic(VOID, address, kind)
    def store(builder, at, value):
        builder.store(value, pointer(builder, at), align=size)

    @intrinsic(VOID, address, kind)
    def stream(builder, at, value):
        stored = builder.store(value, pointer(builder, at), align=BYTES)
        stored.set_metadata("nontemporal", builder.module.add_metadata([_I32(1)]))

    @intrinsic(kind, address, INT64)
    def load_some(builder, at, mask):
        return masked_load(builder, at, flags_of(builder, mask))

    @intrinsic(VOID, address, kind, INT64)
    def store_some(builder, at, value, mask):
        masked_store(builder, at, value, flags_of(builder, mask), vector, name, size)

    @intrinsic(kind, address, INT64)
    def load_pairs(builder, at, mask):
        chosen = flags_of(builder, mask)
        none = ir.Constant(flags, None)
        parts = []
        for half in range(2):
            order = [half * lanes // 2 + i // 2 if i % 2 == 0 else lanes for i in range(lanes)]
            spread = builder.shuffle_vector(chosen, none, ir.Constant(ir.VectorType(_I32, lanes), order))
            parts.append(masked_load(builder, builder.add(at, _I64(half * BYTES)), spread))
        return builder.shuffle_vector(*parts, ir.Constant(ir.VectorType(_I32, lanes), list(range(0, 2 * lanes, 2))))

    @intrinsic(kind, address)
    def load_all_pairs(builder, at):
        # The second half starts with the last number of the first, so that nothing after the last pair is read.
        halves = [
            builder.load(pointer(builder, builder.add(at, _I64(start * size))), align=size) for start in (0, lanes - 1)
        ]
        order = [*range(0, lanes, 2), *range(lanes + 1, 2 * lanes, 2)]
        return builder.shuffle_vector(*halves, ir.Constant(ir.VectorType(_I32, lanes), order))

    @intrinsic(kind, address, INT64, INT64)
    def load_apart(builder, at, step, mask):
        pointers = ir.VectorType(scalar.as_pointer(), lanes)
        function = ir.FunctionType(vector, [pointers, _I32, flags, vector])
        gather = declared(builder, function, f"llvm.masked.gather.{name}.v{lanes}p0")
        places = builder.inttoptr(steps(builder, at, step), pointers)
        return builder.call(gather, [places, _I32(size), flags_of(builder, mask), ir.Constant(vector, None)])

    @intrinsic(kind, real)
    def splat(builder, number):
        return splatted(builder, number, vector)

    @intrinsic(real, kind)
    def total(builder, value):
        function = ir.FunctionType(scalar, [scalar, vector])
        reduced = declared(builder, function, f"llvm.vector.reduce.fadd.{name}")
        return builder.call(reduced, [ir.Constant(scalar, 0.0), value], fastmath=("reassoc",))

    @intrinsic(kind, kind, kind)
    def add(builder, left, right):
        return builder.fadd(left, right)

    @intrinsic(kind, kind, kind)
    def divide(builder, left, right):
        return builder.fdiv(left, right)

    @intrinsic(kind, kind, kind, kind)
    def fma(builder, left, right, addend):
        function = ir.FunctionType(vector, [vector] * 3)
        return builder.call(declared(builder, function, f"llvm.fma.{name}"), [left, right, addend])

    @intrinsic(INT64, kind, kind)
    def rises(builder, value, best):
        greater = builder.fcmp_ordered(">", value, best)
        return mask_of(builder, builder.or_(greater, builder.fcmp_unordered("uno", value, value)))

    @intrinsic(kind, INT64, kind, kind)
    def choose(builder, mask, left, right):
        return builder.select(flags_of(builder, mask), left, right)

    whole_kind = vector_kind("int64", lanes)

    @intrinsic(whole_kind, INT64, INT64)
    def positions(builder, first, step):
        return steps(builder, first, step)

    @intrinsic(whole_kind, INT64, whole_kind, whole_kind)
    def choose_positions(builder, mask, left, right):
        return builder.select(flags_of(builder, mask), left, right)

    @intrinsic(VOID, address, whole_kind, INT64)
    def store_some_positions(builder, at, value, mask):
        masked_store(builder, at, value, flags_of(builder, mask), whole, f"v{lanes}i64", 8)

    return SimpleNamespace(
        lanes=lanes, size=size, load=load, store=store, stream=stream, load_some=load_some, store_some=store_some,
        load_pairs=load_pairs, load_all_pairs=load_all_pairs, load_apart=load_apart, splat=splat, total=total,
        add=add, divide=divide, fma=fma, rises=rises, choose=choose, positions=positions,
        choose_positions=choose_positions, store_some_positions=store_some_positions,
    )  # fmt: skip


def splatted(builder: Any, number: Any, vector: Any) -> Any:
    """Return a vector with the number in every lane."""
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), number, _I32(0))
    zeros = ir.Constant(ir.VectorType(_I32, vector.count), None)
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), zeros)


def masked(builder: Any, mask: Any, lanes: int) -> Any:
    """Return a mask as a vector of flags."""
    return builder.bitcast(builder.trunc(mask, ir.IntType(lanes)), ir.VectorType(ir.IntType(1), lanes))


def zipped(builder: Any, parts: list[list[Any]], lanes: int) -> list[Any]:
    """Interleave the numbers of several rows of vectors."""
    if len(parts) == 1:
        return parts[0]
    out = []
    for left, right in zip(zipped(builder, parts[::2], lanes), zipped(builder, parts[1::2], lanes)):
        for half in range(2):
            order = [half * lanes // 2 + i // 2 + i % 2 * lanes for i in range(lanes)]
            out.append(builder.shuffle_vector(left, right, ir.Constant(ir.VectorType(_I32, lanes), order)))
    return out


# Rows -----------------------------------------------------------------------------------------------------------------


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
