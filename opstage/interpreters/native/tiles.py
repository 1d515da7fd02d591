"""Tiles of sums kept in registers: products of neighbouring numbers, read where they are, by numbers from a panel.

A tile has `rows` x `vectors` sums, each a vector. A step reads `vectors` vectors from addresses of their own, and
`rows` numbers from a panel in which they stand one after another, and adds all their products.
"""

# mypy: disable-error-code="attr-defined, no-untyped-call, no-untyped-def, untyped-decorator"
from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .registers import BYTES, Vector, declared, masked, splatted

_I32, _I64 = ir.IntType(32), ir.IntType(64)


@cache
def tiles(dtype: str, rows: int, vectors: int) -> SimpleNamespace:
    """The functions for tiles of one size; `at`, `to` and `masks` are tuples of `vectors` words, addresses in bytes.

    start(panel)                            every vector of row i is the panel's number i
    step(tile, at, panel)                   adds the products
    finish(tile, to, apart, masks, count)   writes the first `count` rows, `apart` bytes from each other
    """
    size = 4 if dtype == "float32" else 8
    lanes = BYTES // size
    scalar = ir.FloatType() if dtype == "float32" else ir.DoubleType()
    vector = ir.VectorType(scalar, lanes)
    name = f"v{lanes}f{size * 8}"
    tile = types.UniTuple(Vector(dtype, lanes), rows * vectors)
    places = types.UniTuple(types.intp, vectors)

    def number(builder: Any, panel: Any, row: int) -> Any:
        at = builder.inttoptr(builder.add(panel, _I64(row * size)), scalar.as_pointer())
        return splatted(builder, builder.load(at), vector)

    def tiled(builder: Any, parts: list[Any]) -> Any:
        value = ir.Constant(ir.ArrayType(vector, rows * vectors), ir.Undefined)
        for i, part in enumerate(parts):
            value = builder.insert_value(value, part, i)
        return value

    def build_start(builder: Any, panel: Any) -> Any:
        return tiled(builder, [first for row in range(rows) for first in [number(builder, panel, row)] * vectors])

    def build_step(builder: Any, sums: Any, at: Any, panel: Any) -> Any:
        fma = declared(builder, ir.FunctionType(vector, [vector] * 3), f"llvm.fma.{name}")
        cells = [
            builder.load(builder.inttoptr(builder.extract_value(at, i), vector.as_pointer()), align=size)
            for i in range(vectors)
        ]
        parts = []
        for row in range(rows):
            factor = number(builder, panel, row)
            for i, cell in enumerate(cells):
                parts.append(builder.call(fma, [factor, cell, builder.extract_value(sums, row * vectors + i)]))
        return tiled(builder, parts)

    def build_finish(builder: Any, sums: Any, to: Any, apart: Any, masks: Any, count: Any) -> None:
        flags = ir.VectorType(ir.IntType(1), lanes)
        store = declared(
            builder,
            ir.FunctionType(ir.VoidType(), [vector, vector.as_pointer(), _I32, flags]),
            f"llvm.masked.store.{name}.p0",
        )
        for row in range(rows):
            there = builder.icmp_signed("<", _I64(row), count)
            for i in range(vectors):
                mask = builder.select(there, builder.extract_value(masks, i), _I64(0))
                at = builder.add(builder.extract_value(to, i), builder.mul(apart, _I64(row)))
                value = builder.extract_value(sums, row * vectors + i)
                pointer = builder.inttoptr(at, vector.as_pointer())
                builder.call(store, [value, pointer, _I32(size), masked(builder, mask, lanes)])

    def wrapped(build: Callable[..., Any]) -> Callable[..., Any]:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            value = build(builder, *values)
            return context.get_dummy_value() if value is None else value

        return generate

    generate_start, generate_step, generate_finish = wrapped(build_start), wrapped(build_step), wrapped(build_finish)

    @intrinsic
    def start(typing, panel):
        return tile(types.intp), generate_start

    @intrinsic
    def step(typing, sums, at, panel):
        return tile(tile, places, types.intp), generate_step

    @intrinsic
    def finish(typing, sums, to, apart, masks, count):
        return types.void(tile, places, types.intp, places, types.intp), generate_finish

    return SimpleNamespace(start=start, step=step, finish=finish)


@cache
def correlations(dtype: str, rows: int, columns: int) -> SimpleNamespace:
    """The functions for tiles of rows x columns sums of products of vectors with vectors.

    empty()                            a tile of zeros
    correlate(tile, left, right, m)    adds the product of each of the `rows` vectors that stand one after another
                                       at left, and each of those at `columns` addresses, at lanes of m
    totals(tile, to)                   writes the sum over the lanes of each, row by row
    """
    size = 4 if dtype == "float32" else 8
    lanes = BYTES // size
    scalar = ir.FloatType() if dtype == "float32" else ir.DoubleType()
    vector = ir.VectorType(scalar, lanes)
    flags = ir.VectorType(ir.IntType(1), lanes)
    name = f"v{lanes}f{size * 8}"
    tile = types.UniTuple(Vector(dtype, lanes), rows * columns)
    array = ir.ArrayType(vector, rows * columns)

    def build_empty(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return ir.Constant(array, None)

    def build_correlate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        sums, left, right, mask = values
        fma = declared(builder, ir.FunctionType(vector, [vector] * 3), f"llvm.fma.{name}")
        kind = ir.FunctionType(vector, [vector.as_pointer(), _I32, flags, vector])
        load = declared(builder, kind, f"llvm.masked.load.{name}.p0")
        chosen = masked(builder, mask, lanes)

        def loaded(i: int) -> Any:
            at = builder.inttoptr(builder.extract_value(right, i), vector.as_pointer())
            return builder.call(load, [at, _I32(size), chosen, ir.Constant(vector, None)])

        cells = [loaded(i) for i in range(columns)]
        value = ir.Constant(array, ir.Undefined)
        for row in range(rows):
            at = builder.inttoptr(builder.add(left, _I64(row * BYTES)), vector.as_pointer())
            factor = builder.load(at, align=size)
            for i, cell in enumerate(cells):
                place = row * columns + i
                value = builder.insert_value(
                    value, builder.call(fma, [factor, cell, builder.extract_value(sums, place)]), place
                )
        return value

    def build_totals(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        sums, to = values
        kind = ir.FunctionType(scalar, [scalar, vector])
        reduced = declared(builder, kind, f"llvm.vector.reduce.fadd.{name}")
        for i in range(rows * columns):
            total = builder.call(
                reduced, [ir.Constant(scalar, 0.0), builder.extract_value(sums, i)], fastmath=("reassoc",)
            )
            builder.store(total, builder.inttoptr(builder.add(to, _I64(i * size)), scalar.as_pointer()))
        return context.get_dummy_value()

    places = types.UniTuple(types.intp, columns)

    @intrinsic
    def empty(typing):
        return tile(), build_empty

    @intrinsic
    def correlate(typing, sums, left, right, mask):
        return tile(tile, types.intp, places, types.intp), build_correlate

    @intrinsic
    def totals(typing, sums, to):
        return types.void(tile, types.intp), build_totals

    return SimpleNamespace(empty=empty, correlate=correlate, totals=totals)
