"""Vectors of 64 bytes: as values of kernels, kept in registers between iterations, and as rows of numbers in memory.

A mask is an integer with bit i set for each active lane i; memory of inactive lanes is not accessed. LLVM selects the
processor's instructions: one each with AVX-512, several elsewhere.

Like `intrinsics` and `tiles`, this module is imported only to compile.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any, final

from llvmlite import ir

from .frontend import declared, intrinsic
from .frontend.types import FLOAT32, FLOAT64, INT64, VOID, ScalarKind

# mypy: disable-error-code="attr-defined, no-untyped-call, no-untyped-def"


BYTES = 64
_I32, _I64 = ir.IntType(32), ir.IntType(64)

# Instructions ---------------------------------------------------------------------------------------------------------


@final
class Lanes:
    """Vectors of one dtype: their types in LLVM, and the instructions on them.

    lanes, size     numbers of a vector, and bytes of a number
    kind, real      the types of a vector and of a number as values of kernels
    """

    def __init__(self, dtype: str):
        self.size = 4 if dtype == "float32" else 8
        self.lanes = BYTES // self.size
        self.real = FLOAT32 if dtype == "float32" else FLOAT64
        self.scalar = self.real.type
        self.vector = ir.VectorType(self.scalar, self.lanes)
        self.kind = ScalarKind(f"{dtype} x {self.lanes}", self.vector)
        self.flags = ir.VectorType(ir.IntType(1), self.lanes)
        self.name = f"v{self.lanes}f{self.size * 8}"
        self.zeros = ir.Constant(self.vector, None)

    def pointer(self, builder: Any, at: Any, to: Any = None) -> Any:
        return builder.inttoptr(at, (self.vector if to is None else to).as_pointer())

    def load(self, builder: Any, at: Any) -> Any:
        return builder.load(self.pointer(builder, at), align=self.size)

    def store(self, builder: Any, value: Any, at: Any) -> None:
        builder.store(value, self.pointer(builder, at), align=self.size)

    def load_masked(self, builder: Any, at: Any, chosen: Any) -> Any:
        """Load the lanes of a vector of flags, 0 elsewhere."""
        function = ir.FunctionType(self.vector, [self.vector.as_pointer(), _I32, self.flags, self.vector])
        load = declared(builder, function, f"llvm.masked.load.{self.name}.p0")
        return builder.call(load, [self.pointer(builder, at), _I32(self.size), chosen, self.zeros])

    def store_masked(self, builder: Any, value: Any, at: Any, chosen: Any) -> None:
        """Store the lanes of a vector of flags."""
        function = ir.FunctionType(ir.VoidType(), [self.vector, self.vector.as_pointer(), _I32, self.flags])
        store = declared(builder, function, f"llvm.masked.store.{self.name}.p0")
        builder.call(store, [value, self.pointer(builder, at), _I32(self.size), chosen])

    def fma(self, builder: Any, left: Any, right: Any, addend: Any) -> Any:
        function = ir.FunctionType(self.vector, [self.vector] * 3)
        return builder.call(declared(builder, function, f"llvm.fma.{self.name}"), [left, right, addend])

    def splat(self, builder: Any, number: Any) -> Any:
        return splatted(builder, number, self.vector)

    def load_number(self, builder: Any, at: Any) -> Any:
        """Load a number to every lane."""
        return self.splat(builder, builder.load(self.pointer(builder, at, self.scalar)))

    def chosen(self, builder: Any, mask: Any) -> Any:
        """Return a mask as a vector of flags."""
        return builder.bitcast(builder.trunc(mask, ir.IntType(self.lanes)), self.flags)

    def shuffle(self, builder: Any, left: Any, right: Any, order: list[int]) -> Any:
        return builder.shuffle_vector(left, right, ir.Constant(ir.VectorType(_I32, len(order)), order))

    def halves(self) -> list[list[int]]:
        """Return the orders that spread the lanes of a vector over two, each number before one of a second operand."""
        last = self.lanes
        return [[half * last // 2 + i // 2 if i % 2 == 0 else last for i in range(last)] for half in range(2)]

    def zipped(self, builder: Any, parts: list[list[Any]]) -> list[Any]:
        """Interleave the numbers of several rows of vectors."""
        if len(parts) == 1:
            return parts[0]
        out = []
        for left, right in zip(self.zipped(builder, parts[::2]), self.zipped(builder, parts[1::2])):
            for half in range(2):
                order = [half * self.lanes // 2 + i // 2 + i % 2 * self.lanes for i in range(self.lanes)]
                out.append(self.shuffle(builder, left, right, order))
        return out


lanes_of = cache(Lanes)


def splatted(builder: Any, number: Any, vector: Any) -> Any:
    """Return a vector with the number in every lane."""
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), number, _I32(0))
    zeros = ir.Constant(ir.VectorType(_I32, vector.count), None)
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), zeros)


# In registers ---------------------------------------------------------------------------------------------------------


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
    x = lanes_of(dtype)
    lanes, size, kind = x.lanes, x.size, x.kind
    whole = ir.VectorType(_I64, lanes)
    whole_kind = ScalarKind(f"int64 x {lanes}", whole)

    def steps(builder: Any, first: Any, step: Any) -> Any:
        counted = ir.Constant(whole, list(range(lanes)))
        return builder.add(splatted(builder, first, whole), builder.mul(splatted(builder, step, whole), counted))

    @intrinsic(kind, INT64)
    def load(builder, at):
        return x.load(builder, at)

    @intrinsic(VOID, INT64, kind)
    def store(builder, at, value):
        x.store(builder, value, at)

    @intrinsic(VOID, INT64, kind)
    def stream(builder, at, value):
        stored = builder.store(value, x.pointer(builder, at), align=BYTES)
        stored.set_metadata("nontemporal", builder.module.add_metadata([_I32(1)]))

    @intrinsic(kind, INT64, INT64)
    def load_some(builder, at, mask):
        return x.load_masked(builder, at, x.chosen(builder, mask))

    @intrinsic(VOID, INT64, kind, INT64)
    def store_some(builder, at, value, mask):
        x.store_masked(builder, value, at, x.chosen(builder, mask))

    @intrinsic(kind, INT64, INT64)
    def load_pairs(builder, at, mask):
        chosen, none = x.chosen(builder, mask), ir.Constant(x.flags, None)
        parts = []
        for half, order in enumerate(x.halves()):
            spread = x.shuffle(builder, chosen, none, order)
            parts.append(x.load_masked(builder, builder.add(at, _I64(half * BYTES)), spread))
        return x.shuffle(builder, parts[0], parts[1], list(range(0, 2 * lanes, 2)))

    @intrinsic(kind, INT64)
    def load_all_pairs(builder, at):
        # The second half starts with the last number of the first, so that nothing after the last pair is read.
        left, right = (x.load(builder, builder.add(at, _I64(start * size))) for start in (0, lanes - 1))
        return x.shuffle(builder, left, right, [*range(0, lanes, 2), *range(lanes + 1, 2 * lanes, 2)])

    @intrinsic(kind, INT64, INT64, INT64)
    def load_apart(builder, at, step, mask):
        pointers = ir.VectorType(x.scalar.as_pointer(), lanes)
        function = ir.FunctionType(x.vector, [pointers, _I32, x.flags, x.vector])
        gather = declared(builder, function, f"llvm.masked.gather.{x.name}.v{lanes}p0")
        places = builder.inttoptr(steps(builder, at, step), pointers)
        return builder.call(gather, [places, _I32(size), x.chosen(builder, mask), x.zeros])

    @intrinsic(kind, x.real)
    def splat(builder, number):
        return x.splat(builder, number)

    @intrinsic(x.real, kind)
    def total(builder, value):
        function = ir.FunctionType(x.scalar, [x.scalar, x.vector])
        reduced = declared(builder, function, f"llvm.vector.reduce.fadd.{x.name}")
        return builder.call(reduced, [ir.Constant(x.scalar, 0.0), value], fastmath=("reassoc",))

    @intrinsic(kind, kind, kind)
    def add(builder, left, right):
        return builder.fadd(left, right)

    @intrinsic(kind, kind, kind)
    def divide(builder, left, right):
        return builder.fdiv(left, right)

    @intrinsic(kind, kind, kind, kind)
    def fma(builder, left, right, addend):
        return x.fma(builder, left, right, addend)

    @intrinsic(INT64, kind, kind)
    def rises(builder, value, best):
        greater = builder.fcmp_ordered(">", value, best)
        above = builder.or_(greater, builder.fcmp_unordered("uno", value, value))
        return builder.zext(builder.bitcast(above, ir.IntType(lanes)), _I64)

    @intrinsic(kind, INT64, kind, kind)
    def choose(builder, mask, left, right):
        return builder.select(x.chosen(builder, mask), left, right)

    @intrinsic(whole_kind, INT64, INT64)
    def positions(builder, first, step):
        return steps(builder, first, step)

    @intrinsic(whole_kind, INT64, whole_kind, whole_kind)
    def choose_positions(builder, mask, left, right):
        return builder.select(x.chosen(builder, mask), left, right)

    @intrinsic(VOID, INT64, whole_kind, INT64)
    def store_some_positions(builder, at, value, mask):
        function = ir.FunctionType(ir.VoidType(), [whole, whole.as_pointer(), _I32, x.flags])
        masked_store = declared(builder, function, f"llvm.masked.store.v{lanes}i64.p0")
        builder.call(masked_store, [value, x.pointer(builder, at, whole), _I32(8), x.chosen(builder, mask)])

    return SimpleNamespace(
        lanes=lanes, size=size, load=load, store=store, stream=stream, load_some=load_some, store_some=store_some,
        load_pairs=load_pairs, load_all_pairs=load_all_pairs, load_apart=load_apart, splat=splat, total=total,
        add=add, divide=divide, fma=fma, rises=rises, choose=choose, positions=positions,
        choose_positions=choose_positions, store_some_positions=store_some_positions,
    )  # fmt: skip


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
    x = lanes_of(dtype)
    lanes, size = x.lanes, x.size

    @intrinsic(VOID, INT64, INT64, INT64, INT64)
    def move(builder, to, source, read, write):
        value = x.load_masked(builder, source, x.chosen(builder, read))
        x.store_masked(builder, value, to, x.chosen(builder, write))

    @intrinsic(VOID, INT64, INT64, INT64)
    def accumulate(builder, to, source, mask):
        chosen = x.chosen(builder, mask)
        total = builder.fadd(x.load_masked(builder, to, chosen), x.load_masked(builder, source, chosen))
        x.store_masked(builder, total, to, chosen)

    @intrinsic(VOID, INT64, x.real, INT64)
    def accumulate_number(builder, to, number, mask):
        chosen = x.chosen(builder, mask)
        total = builder.fadd(x.load_masked(builder, to, chosen), x.splat(builder, number))
        x.store_masked(builder, total, to, chosen)

    @intrinsic(x.real, INT64)
    def load(builder, source):
        return builder.load(x.pointer(builder, source, x.scalar))

    @intrinsic(VOID, INT64, x.real)
    def store(builder, to, value):
        builder.store(value, x.pointer(builder, to, x.scalar))

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
