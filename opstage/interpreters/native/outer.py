"""Tiles of sums kept in registers: products of single numbers, read in place, with vectors from packed panels.

A tile has `rows` x `vectors` sums, each a vector. A step reads a number at each of `rows` given offsets and a vector
from each of `vectors` panels, and adds all their products. So no lane is idle for numbers at any places: it is the
counterpart of `tiles`, whose vectors are what is read in place.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

from llvmlite import ir

from .frontend import declared, intrinsic
from .frontend.kinds import INT64, VOID, ScalarKind
from .registers import BYTES, masked, splatted, zipped

_I32, _I64 = ir.IntType(32), ir.IntType(64)


@cache
def outer(dtype: str, rows: int, vectors: int) -> SimpleNamespace:
    """Return the functions for tiles of one size; addresses, distances and offsets are in bytes.

    places(at)                              a tuple of `rows` words, from memory
    start(panel, apart)                     every row has the vectors at panel, panel + apart, …
    load(at, places), store(tile, at, places)    row i at at + places[i], its vectors one after another
    step(tile, cells, places, panel, apart)      adds the products of the numbers at cells + places with the vectors at
                                            panel, panel + apart, …
    pair(tile, cells, places, panel)        adds the products, lane by lane, of the vectors at cells + places with that
                                            at panel, for tiles of one vector a row
    """
    size = 4 if dtype == "float32" else 8
    lanes = BYTES // size
    scalar = ir.FloatType() if dtype == "float32" else ir.DoubleType()
    vector = ir.VectorType(scalar, lanes)
    name = f"v{lanes}f{size * 8}"
    tile_type = ir.ArrayType(vector, rows * vectors)
    tile = ScalarKind(f"outer {dtype} {rows} x {vectors}", tile_type)
    words = ScalarKind(f"places {rows}", ir.ArrayType(_I64, rows))

    def pointer(builder: Any, at: Any, to: Any = vector) -> Any:
        return builder.inttoptr(at, to.as_pointer())

    def array(builder: Any, element: Any, parts: list[Any]) -> Any:
        value = ir.Constant(ir.ArrayType(element, len(parts)), ir.Undefined)
        for i, part in enumerate(parts):
            value = builder.insert_value(value, part, i)
        return value

    def apart_from(builder: Any, panel: Any, apart: Any) -> list[Any]:
        at = [builder.add(panel, builder.mul(apart, _I64(i))) for i in range(vectors)]
        return [builder.load(pointer(builder, a), align=size) for a in at]

    def each(builder: Any, at: Any, places: Any) -> list[Any]:
        """Return the addresses of all vectors of a tile."""
        starts = [builder.add(at, builder.extract_value(places, row)) for row in range(rows)]
        return [pointer(builder, builder.add(start, _I64(i * BYTES))) for start in starts for i in range(vectors)]

    def build_places(builder: Any, at: Any) -> Any:
        first = builder.inttoptr(at, _I64.as_pointer())
        return array(builder, _I64, [builder.load(builder.gep(first, [_I64(i)])) for i in range(rows)])

    def build_start(builder: Any, panel: Any, apart: Any) -> Any:
        return array(builder, vector, apart_from(builder, panel, apart) * rows)

    def build_load(builder: Any, at: Any, places: Any) -> Any:
        return array(builder, vector, [builder.load(p, align=size) for p in each(builder, at, places)])

    def build_store(builder: Any, sums: Any, at: Any, places: Any) -> None:
        for i, p in enumerate(each(builder, at, places)):
            builder.store(builder.extract_value(sums, i), p, align=size)

    def build_step(builder: Any, sums: Any, at: Any, places: Any, panel: Any, apart: Any) -> Any:
        fma = declared(builder, ir.FunctionType(vector, [vector] * 3), f"llvm.fma.{name}")
        factors, parts = apart_from(builder, panel, apart), []
        for row in range(rows):
            cell = builder.add(at, builder.extract_value(places, row))
            number = splatted(builder, builder.load(pointer(builder, cell, scalar)), vector)
            for i, factor in enumerate(factors):
                parts.append(builder.call(fma, [number, factor, builder.extract_value(sums, row * vectors + i)]))
        return array(builder, vector, parts)

    def build_pair(builder: Any, sums: Any, at: Any, places: Any, panel: Any) -> Any:
        fma = declared(builder, ir.FunctionType(vector, [vector] * 3), f"llvm.fma.{name}")
        factor = builder.load(pointer(builder, panel), align=size)
        cells = [builder.load(p, align=size) for p in each(builder, at, places)[::vectors]]
        parts = [builder.call(fma, [cell, factor, builder.extract_value(sums, i)]) for i, cell in enumerate(cells)]
        return array(builder, vector, parts)

    return SimpleNamespace(
        places=intrinsic(words, INT64)(build_places),
        start=intrinsic(tile, INT64, INT64)(build_start),
        load=intrinsic(tile, INT64, words)(build_load),
        store=intrinsic(VOID, tile, INT64, words)(build_store),
        step=intrinsic(tile, tile, INT64, words, INT64, INT64)(build_step),
        pair=intrinsic(tile, tile, INT64, words, INT64)(build_pair),
    )


@cache
def transposition(dtype: str) -> SimpleNamespace:
    """Return the functions that write a transposed square of numbers.

    Row i of the source has a vector of numbers; of the first `count` rows the numbers of one place are written
    together, those of the first `present` places. Rows, and what is written, are a distance from each other or at
    offsets in memory, as many as a vector has numbers; all in bytes.

    turn(to, source, apart, count, step, present)           rows are `apart`, what is written `step`
    turn_to(to, source, apart, count, places, present)      what is written is at to + the words at places
    turn_from(to, source, places, count, step, present)     rows are at source + the words at places
    """
    size = 4 if dtype == "float32" else 8
    lanes = BYTES // size
    vector = ir.VectorType(ir.FloatType() if dtype == "float32" else ir.DoubleType(), lanes)
    flags = ir.VectorType(ir.IntType(1), lanes)
    name = f"v{lanes}f{size * 8}"

    def build(builder: Any, read_at: Any, write_at: Any, count: Any, present: Any) -> None:
        load_kind = ir.FunctionType(vector, [vector.as_pointer(), _I32, flags, vector])
        load = declared(builder, load_kind, f"llvm.masked.load.{name}.p0")
        store_kind = ir.FunctionType(ir.VoidType(), [vector, vector.as_pointer(), _I32, flags])
        store = declared(builder, store_kind, f"llvm.masked.store.{name}.p0")
        every, wanted = (builder.sub(builder.shl(_I64(1), n), _I64(1)) for n in (count, present))
        rows = []
        for i in range(lanes):  # nothing is read beyond the places that are wanted, where memory may end
            there = builder.select(builder.icmp_signed("<", _I64(i), count), wanted, _I64(0))
            at = builder.inttoptr(read_at(i), vector.as_pointer())
            rows.append(
                [builder.call(load, [at, _I32(size), masked(builder, there, lanes), ir.Constant(vector, None)])]
            )
        for i, column in enumerate(zipped(builder, rows, lanes)):
            chosen = builder.select(builder.icmp_signed("<", _I64(i), present), every, _I64(0))
            at = builder.inttoptr(write_at(i), vector.as_pointer())
            builder.call(store, [column, at, _I32(size), masked(builder, chosen, lanes)])

    def even(builder: Any, start: Any, step: Any) -> Any:
        return lambda i: builder.add(start, builder.mul(step, _I64(i)))

    def listed(builder: Any, start: Any, places: Any) -> Any:
        first = builder.inttoptr(places, _I64.as_pointer())
        return lambda i: builder.add(start, builder.load(builder.gep(first, [_I64(i)])))

    def made(rows_are: Any, columns_are: Any) -> Any:
        @intrinsic(VOID, *[INT64] * 6)
        def function(builder, to, source, rows, count, columns, present):  # type: ignore[no-untyped-def]
            build(builder, rows_are(builder, source, rows), columns_are(builder, to, columns), count, present)

        return function

    return SimpleNamespace(turn=made(even, even), turn_to=made(even, listed), turn_from=made(listed, even))
