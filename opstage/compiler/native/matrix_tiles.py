"""Tiles of a matrix product, kept in registers, and what packs the operands that they read.

A tile has `rows` x `vectors` sums, each a vector. A step reads `vectors` vectors of a row of B and `rows` numbers of a
column of A, and adds all their products.

Like `memory`, this module is imported only to compile.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

from llvmlite import ir

from .frontend import declared, intrinsic
from .frontend.types import INT64, VOID, ScalarKind
from .vectors import BYTES, splatted

# mypy: disable-error-code="no-untyped-call, no-untyped-def"


_I32, _I64 = ir.IntType(32), ir.IntType(64)


@cache
def matrix_tiles(dtype: str, rows: int, vectors: int) -> SimpleNamespace:
    """Return the functions for tiles of one size; addresses and distances are in bytes.

    zeros()                                a tile of zeros
    offsets(apart, present)                where the numbers of a column are, `apart` from each other; those from
                                           `present` on are its last one, so that nothing behind it is read
    step(tile, row, column, offsets)       adds the products of the vectors at `row` and the numbers at `column`
    step_packing(tile, row, column, offsets, to)       and copies the vectors to `to`
    write(tile, to, apart)                 writes the rows, `apart` from each other
    add(tile, to, apart)                   adds them to what is there
    """
    size = 4 if dtype == "float32" else 8
    lanes = BYTES // size
    scalar = ir.FloatType() if dtype == "float32" else ir.DoubleType()
    vector = ir.VectorType(scalar, lanes)
    array = ir.ArrayType(vector, rows * vectors)
    tile = ScalarKind(f"tile {dtype} {rows} x {vectors}", array)
    places = ScalarKind(f"offsets {rows}", ir.ArrayType(_I64, rows))

    def pointer(builder: Any, at: Any, i: int) -> Any:
        return builder.inttoptr(builder.add(at, _I64(i * BYTES)), vector.as_pointer())

    @intrinsic(tile)
    def zeros(builder):
        return ir.Constant(array, None)

    @intrinsic(places, INT64, INT64)
    def offsets(builder, apart, present):
        value, last = ir.Constant(places.type, ir.Undefined), builder.sub(present, _I64(1))
        for row in range(rows):
            there = builder.select(builder.icmp_signed("<", _I64(row), last), _I64(row), last)
            value = builder.insert_value(value, builder.mul(apart, there), row)
        return value

    @intrinsic(tile, tile, INT64, INT64, places)
    def step(builder, sums, row, column, at):
        return stepped(builder, sums, row, column, at)

    @intrinsic(tile, tile, INT64, INT64, places, INT64)
    def step_packing(builder, sums, row, column, at, to):
        return stepped(builder, sums, row, column, at, to)

    def stepped(builder: Any, sums: Any, line: Any, column: Any, at: Any, to: Any = None) -> Any:
        fma = declared(builder, ir.FunctionType(vector, [vector] * 3), f"llvm.fma.v{lanes}f{size * 8}")
        cells = [builder.load(pointer(builder, line, i), align=size) for i in range(vectors)]
        for i, cell in enumerate(cells if to is not None else ()):
            builder.store(cell, pointer(builder, to, i), align=size)
        made = ir.Constant(array, ir.Undefined)
        for row in range(rows):
            place = builder.add(column, builder.extract_value(at, row))
            factor = splatted(builder, builder.load(builder.inttoptr(place, scalar.as_pointer())), vector)
            for i, cell in enumerate(cells):
                which = row * vectors + i
                total = builder.call(fma, [factor, cell, builder.extract_value(sums, which)])
                made = builder.insert_value(made, total, which)
        return made

    def put(builder: Any, sums: Any, to: Any, apart: Any, *, added: bool) -> None:
        for row in range(rows):
            line = builder.add(to, builder.mul(apart, _I64(row)))
            for i in range(vectors):
                at, value = pointer(builder, line, i), builder.extract_value(sums, row * vectors + i)
                builder.store(builder.fadd(builder.load(at, align=size), value) if added else value, at, align=size)

    @intrinsic(VOID, tile, INT64, INT64)
    def write(builder, sums, to, apart):
        put(builder, sums, to, apart, added=False)

    @intrinsic(VOID, tile, INT64, INT64)
    def add(builder, sums, to, apart):
        put(builder, sums, to, apart, added=True)

    return SimpleNamespace(zeros=zeros, offsets=offsets, step=step, step_packing=step_packing, write=write, add=add)


@cache
def packing(dtype: str) -> SimpleNamespace:
    """Return the functions for packing.

    turn(to, step, source, apart, present)   transposes `piece` numbers of each of as many rows as a vector has lanes,
                                             `apart` from each other, to `piece` vectors, `step` from each other; for
                                             rows from `present` on the last one is taken
    fetch(at), fetch_near(at)                have a cache line come to the second cache, and to the first one
    fetch_written(at)                        has one come that will be written
    """
    size = 4 if dtype == "float32" else 8
    lanes, piece = BYTES // size, 16 // size
    scalar = ir.FloatType() if dtype == "float32" else ir.DoubleType()
    vector, part = ir.VectorType(scalar, lanes), ir.VectorType(scalar, piece)

    @intrinsic(VOID, *[INT64] * 5)
    def turn(builder, to, step, source, apart, present):
        last = builder.sub(present, _I64(1))
        parts = []
        for row in range(lanes):
            there = builder.select(builder.icmp_signed("<", _I64(row), last), _I64(row), last)
            at = builder.add(source, builder.mul(apart, there))
            parts.append(builder.load(builder.inttoptr(at, part.as_pointer()), align=size))
        # Every fourth row, or second one, in one vector: what is left moves within 16 bytes, which is faster than a
        # transposition of whole vectors.
        for i, made in enumerate(within(builder, [joined(builder, parts[row::piece]) for row in range(piece)])):
            at = builder.inttoptr(builder.add(to, builder.mul(step, _I64(i))), vector.as_pointer())
            builder.store(made, at, align=size)

    def joined(builder: Any, parts: list[Any]) -> Any:
        if len(parts) == 1:
            return parts[0]
        half = len(parts) // 2
        left, right = joined(builder, parts[:half]), joined(builder, parts[half:])
        order = list(range(2 * left.type.count))
        return builder.shuffle_vector(left, right, ir.Constant(ir.VectorType(_I32, len(order)), order))

    def within(builder: Any, parts: list[Any]) -> list[Any]:
        """Interleave the numbers of several vectors, in each 16 bytes of them."""
        if len(parts) == 1:
            return parts
        made = []
        for left, right in zip(within(builder, parts[::2]), within(builder, parts[1::2])):
            for half in (0, piece // 2):
                order = [
                    first + half + i // 2 + i % 2 * lanes for first in range(0, lanes, piece) for i in range(piece)
                ]
                made.append(builder.shuffle_vector(left, right, ir.Constant(ir.VectorType(_I32, lanes), order)))
        return made

    def fetched(builder: Any, at: Any, written: int, near: int) -> None:
        byte = ir.IntType(8).as_pointer()
        fetch = declared(builder, ir.FunctionType(ir.VoidType(), [byte, _I32, _I32, _I32]), "llvm.prefetch.p0")
        builder.call(fetch, [builder.inttoptr(at, byte), _I32(written), _I32(near), _I32(1)])

    @intrinsic(VOID, INT64)
    def fetch(builder, at):
        fetched(builder, at, 0, 2)

    @intrinsic(VOID, INT64)
    def fetch_near(builder, at):
        fetched(builder, at, 0, 3)

    @intrinsic(VOID, INT64)
    def fetch_written(builder, at):
        fetched(builder, at, 1, 3)

    return SimpleNamespace(piece=piece, turn=turn, fetch=fetch, fetch_near=fetch_near, fetch_written=fetch_written)
