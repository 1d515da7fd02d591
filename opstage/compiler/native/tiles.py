"""Tiles: sums in registers, a vector each, to which a step adds products.

Four kinds of tiles differ in what a step reads:

    matrix_tiles    vectors of a row of B, and numbers of a column of A, evenly apart: a product of matrices
    tiles           vectors at given offsets, and consecutive numbers of a panel: windows of a convolution by channels
    outer           numbers at given offsets, and vectors of panels: channels by windows, so that no lane is idle
    correlations    vectors at given offsets, and consecutive vectors: sums over lanes, for the gradient of a kernel

`packing` and `transposition` write the panels. Like `intrinsics`, this module is imported only to compile.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

from llvmlite import ir

from .frontend import declared, intrinsic
from .frontend.types import INT64, VOID, ScalarKind
from .vectors import BYTES, lanes_of, splatted

# mypy: disable-error-code="no-untyped-call, no-untyped-def"


_I32, _I64 = ir.IntType(32), ir.IntType(64)

# What tiles share -----------------------------------------------------------------------------------------------------


def _array(builder: Any, element: Any, parts: list[Any]) -> Any:
    """Return an array of values."""
    value = ir.Constant(ir.ArrayType(element, len(parts)), ir.Undefined)
    for i, part in enumerate(parts):
        value = builder.insert_value(value, part, i)
    return value


def _offset(builder: Any, at: Any, apart: Any, i: int) -> Any:
    return builder.add(at, builder.mul(apart, _I64(i)))


@cache
def _places(count: int) -> tuple[ScalarKind, Any]:
    """Return the kind of `count` offsets, and the function that reads them from memory."""
    words = ScalarKind(f"places {count}", ir.ArrayType(_I64, count))

    @intrinsic(words, INT64)
    def places(builder, at):
        first = builder.inttoptr(at, _I64.as_pointer())
        return _array(builder, _I64, [builder.load(builder.gep(first, [_I64(i)])) for i in range(count)])

    return words, places


# Products of matrices -------------------------------------------------------------------------------------------------


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
    x = lanes_of(dtype)
    array = ir.ArrayType(x.vector, rows * vectors)
    tile = ScalarKind(f"tile {dtype} {rows} x {vectors}", array)
    words, _ = _places(rows)

    @intrinsic(tile)
    def zeros(builder):
        return ir.Constant(array, None)

    @intrinsic(words, INT64, INT64)
    def offsets(builder, apart, present):
        last = builder.sub(present, _I64(1))
        return _array(builder, _I64, [builder.mul(apart, _row_there(builder, row, last)) for row in range(rows)])

    @intrinsic(tile, tile, INT64, INT64, words)
    def step(builder, sums, row, column, at):
        return stepped(builder, sums, row, column, at)

    @intrinsic(tile, tile, INT64, INT64, words, INT64)
    def step_packing(builder, sums, row, column, at, to):
        return stepped(builder, sums, row, column, at, to)

    def stepped(builder: Any, sums: Any, line: Any, column: Any, at: Any, to: Any = None) -> Any:
        cells = [x.load(builder, builder.add(line, _I64(i * BYTES))) for i in range(vectors)]
        for i, cell in enumerate(cells if to is not None else ()):
            x.store(builder, cell, builder.add(to, _I64(i * BYTES)))
        parts = []
        for row in range(rows):
            factor = x.load_number(builder, builder.add(column, builder.extract_value(at, row)))
            for i, cell in enumerate(cells):
                parts.append(x.fma(builder, factor, cell, builder.extract_value(sums, row * vectors + i)))
        return _array(builder, x.vector, parts)

    def put(builder: Any, sums: Any, to: Any, apart: Any, *, added: bool) -> None:
        for row in range(rows):
            line = _offset(builder, to, apart, row)
            for i in range(vectors):
                at, value = builder.add(line, _I64(i * BYTES)), builder.extract_value(sums, row * vectors + i)
                x.store(builder, builder.fadd(x.load(builder, at), value) if added else value, at)

    @intrinsic(VOID, tile, INT64, INT64)
    def write(builder, sums, to, apart):
        put(builder, sums, to, apart, added=False)

    @intrinsic(VOID, tile, INT64, INT64)
    def add(builder, sums, to, apart):
        put(builder, sums, to, apart, added=True)

    return SimpleNamespace(zeros=zeros, offsets=offsets, step=step, step_packing=step_packing, write=write, add=add)


def _row_there(builder: Any, row: int, last: Any) -> Any:
    """Return the number of a row, or of the last one that there is."""
    return builder.select(builder.icmp_signed("<", _I64(row), last), _I64(row), last)


@cache
def packing(dtype: str) -> SimpleNamespace:
    """Return the functions for packing.

    turn(to, step, source, apart, present)   transposes `piece` numbers of each of as many rows as a vector has lanes,
                                             `apart` from each other, to `piece` vectors, `step` from each other; for
                                             rows from `present` on the last one is taken
    fetch(at), fetch_near(at)                have a cache line come to the second cache, and to the first one
    fetch_written(at)                        has one come that will be written
    """
    x = lanes_of(dtype)
    lanes, piece = x.lanes, 16 // x.size
    part = ir.VectorType(x.scalar, piece)

    @intrinsic(VOID, *[INT64] * 5)
    def turn(builder, to, step, source, apart, present):
        last = builder.sub(present, _I64(1))
        parts = []
        for row in range(lanes):
            at = builder.add(source, builder.mul(apart, _row_there(builder, row, last)))
            parts.append(builder.load(x.pointer(builder, at, part), align=x.size))
        # Every fourth row, or second one, in one vector: what is left moves within 16 bytes, which is faster than a
        # transposition of whole vectors.
        for i, made in enumerate(within(builder, [joined(builder, parts[row::piece]) for row in range(piece)])):
            x.store(builder, made, _offset(builder, to, step, i))

    def joined(builder: Any, parts: list[Any]) -> Any:
        if len(parts) == 1:
            return parts[0]
        half = len(parts) // 2
        left, right = joined(builder, parts[:half]), joined(builder, parts[half:])
        return x.shuffle(builder, left, right, list(range(2 * left.type.count)))

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
                made.append(x.shuffle(builder, left, right, order))
        return made

    def fetched(written: int, near: int) -> Any:
        @intrinsic(VOID, INT64)
        def fetch(builder, at):
            byte = ir.IntType(8).as_pointer()
            function = ir.FunctionType(ir.VoidType(), [byte, _I32, _I32, _I32])
            prefetch = declared(builder, function, "llvm.prefetch.p0")
            builder.call(prefetch, [builder.inttoptr(at, byte), _I32(written), _I32(near), _I32(1)])

        return fetch

    return SimpleNamespace(
        piece=piece, turn=turn, fetch=fetched(0, 2), fetch_near=fetched(0, 3), fetch_written=fetched(1, 3)
    )


# Products of single numbers -------------------------------------------------------------------------------------------


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
    x = lanes_of(dtype)
    tile = ScalarKind(f"outer {dtype} {rows} x {vectors}", ir.ArrayType(x.vector, rows * vectors))
    words, places = _places(rows)

    def panels(builder: Any, panel: Any, apart: Any) -> list[Any]:
        at = [_offset(builder, panel, apart, i) for i in range(vectors)]
        return [x.load(builder, a) for a in at]

    def each(builder: Any, at: Any, places: Any) -> list[Any]:
        """Return the addresses of all vectors of a tile."""
        starts = [builder.add(at, builder.extract_value(places, row)) for row in range(rows)]
        return [builder.add(start, _I64(i * BYTES)) for start in starts for i in range(vectors)]

    @intrinsic(tile, INT64, INT64)
    def start(builder, panel, apart):
        return _array(builder, x.vector, panels(builder, panel, apart) * rows)

    @intrinsic(tile, INT64, words)
    def load(builder, at, places):
        return _array(builder, x.vector, [x.load(builder, a) for a in each(builder, at, places)])

    @intrinsic(VOID, tile, INT64, words)
    def store(builder, sums, at, places):
        for i, a in enumerate(each(builder, at, places)):
            x.store(builder, builder.extract_value(sums, i), a)

    @intrinsic(tile, tile, INT64, words, INT64, INT64)
    def step(builder, sums, at, places, panel, apart):
        factors, parts = panels(builder, panel, apart), []
        for row in range(rows):
            number = x.load_number(builder, builder.add(at, builder.extract_value(places, row)))
            for i, factor in enumerate(factors):
                parts.append(x.fma(builder, number, factor, builder.extract_value(sums, row * vectors + i)))
        return _array(builder, x.vector, parts)

    @intrinsic(tile, tile, INT64, words, INT64)
    def pair(builder, sums, at, places, panel):
        factor = x.load(builder, panel)
        cells = [x.load(builder, a) for a in each(builder, at, places)[::vectors]]
        parts = [x.fma(builder, cell, factor, builder.extract_value(sums, i)) for i, cell in enumerate(cells)]
        return _array(builder, x.vector, parts)

    return SimpleNamespace(places=places, start=start, load=load, store=store, step=step, pair=pair)


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
    x = lanes_of(dtype)

    def build(builder: Any, read_at: Any, write_at: Any, count: Any, present: Any) -> None:
        every, wanted = (builder.sub(builder.shl(_I64(1), n), _I64(1)) for n in (count, present))
        rows = []
        for i in range(x.lanes):  # nothing is read beyond the places that are wanted, where memory may end
            there = builder.select(builder.icmp_signed("<", _I64(i), count), wanted, _I64(0))
            rows.append([x.load_masked(builder, read_at(i), x.chosen(builder, there))])
        for i, column in enumerate(x.zipped(builder, rows)):
            there = builder.select(builder.icmp_signed("<", _I64(i), present), every, _I64(0))
            x.store_masked(builder, column, write_at(i), x.chosen(builder, there))

    def even(builder: Any, start: Any, step: Any) -> Any:
        return lambda i: _offset(builder, start, step, i)

    def listed(builder: Any, start: Any, places: Any) -> Any:
        first = builder.inttoptr(places, _I64.as_pointer())
        return lambda i: builder.add(start, builder.load(builder.gep(first, [_I64(i)])))

    def made(rows_are: Any, columns_are: Any) -> Any:
        @intrinsic(VOID, *[INT64] * 6)
        def function(builder, to, source, rows, count, columns, present):
            build(builder, rows_are(builder, source, rows), columns_are(builder, to, columns), count, present)

        return function

    return SimpleNamespace(turn=made(even, even), turn_to=made(even, listed), turn_from=made(listed, even))


# Products of contiguous numbers ---------------------------------------------------------------------------------------


@cache
def tiles(dtype: str, rows: int, vectors: int) -> SimpleNamespace:
    """Return the functions for tiles of one size; addresses, and the values of `places`, are in bytes.

    places(at)                              a tuple of `vectors` words, from memory
    start(panel)                            every vector of row i is the panel's number i
    step(tile, cells, places, panel)        adds the products of the vectors at cells + places
    finish(tile, to, places, apart, masks, count)            writes the first `count` rows, `apart` bytes from each
                                            other: of each vector the lanes of its mask, one after another
    finish_pairs(tile, to, places, apart, masks, count)          the lanes of its mask, each two from the next
    finish_apart(tile, to, places, apart, masks, count, step)    the lanes of its mask, each `step` bytes from the next
    lay(to, source, apart, count, present)  writes numbers 0 … count (at most as many as a vector has lanes) of each of
                                            `rows` rows, those of one place together; rows from `present` on are zeros.
                                            Gives 0 at all lanes, or nan where one is not a number
    """
    x = lanes_of(dtype)
    lanes, size, vector, flags = x.lanes, x.size, x.vector, x.flags
    tile = ScalarKind(f"tile {dtype} {rows} x {vectors}", ir.ArrayType(vector, rows * vectors))
    words, places = _places(vectors)

    def number(builder: Any, panel: Any, row: int) -> Any:
        return x.load_number(builder, builder.add(panel, _I64(row * size)))

    def below(builder: Any, count: Any) -> Any:
        """Return the mask of the first `count` lanes, from 0 to all of them."""
        some = builder.icmp_signed(">", count, _I64(0))
        most = builder.icmp_signed(">=", count, _I64(lanes))
        mask = builder.sub(builder.shl(_I64(1), builder.select(most, _I64(0), count)), _I64(1))
        return builder.select(most, _I64((1 << lanes) - 1), builder.select(some, mask, _I64(0)))

    @intrinsic(tile, INT64)
    def start(builder, panel):
        numbers = [number(builder, panel, row) for row in range(rows)]
        return _array(builder, vector, [first for first in numbers for _ in range(vectors)])

    @intrinsic(tile, tile, INT64, words, INT64)
    def step(builder, sums, at, places, panel):
        addresses = [builder.add(at, builder.extract_value(places, i)) for i in range(vectors)]
        cells = [x.load(builder, a) for a in addresses]
        parts = []
        for row in range(rows):
            factor = number(builder, panel, row)
            for i, cell in enumerate(cells):
                parts.append(x.fma(builder, factor, cell, builder.extract_value(sums, row * vectors + i)))
        return _array(builder, vector, parts)

    def each(builder: Any, values: tuple[Any, ...], write: Callable[[Any, Any, Any], None]) -> None:
        """Call `write(value, address, mask)` for every vector of a tile."""
        sums, to, places, apart, masks, count = values
        for row in range(rows):
            there = builder.icmp_signed("<", _I64(row), count)
            line = _offset(builder, to, apart, row)
            for i in range(vectors):
                mask = builder.select(there, builder.extract_value(masks, i), _I64(0))
                value = builder.extract_value(sums, row * vectors + i)
                write(value, builder.add(line, builder.extract_value(places, i)), mask)

    @intrinsic(VOID, tile, INT64, words, INT64, words, INT64)
    def finish(builder, *values):
        function = ir.FunctionType(vector, [vector, vector, flags])
        compress = declared(builder, function, f"llvm.x86.avx512.mask.compress.{x.name}")
        popcount = declared(builder, ir.FunctionType(_I64, [_I64]), "llvm.ctpop.i64")

        def write(value: Any, at: Any, mask: Any) -> None:
            together = builder.call(compress, [value, x.zeros, x.chosen(builder, mask)])
            first = below(builder, builder.call(popcount, [mask]))
            x.store_masked(builder, together, at, x.chosen(builder, first))

        each(builder, values, write)

    @intrinsic(VOID, tile, INT64, words, INT64, words, INT64)
    def finish_pairs(builder, *values):
        """Spread the lanes over two vectors, of which every second number is written: faster than to scatter them."""

        def write(value: Any, at: Any, mask: Any) -> None:
            chosen, none = x.chosen(builder, mask), ir.Constant(flags, None)
            for half, order in enumerate(x.halves()):
                there = x.shuffle(builder, chosen, none, order)
                part = x.shuffle(builder, value, x.zeros, order)
                x.store_masked(builder, part, builder.add(at, _I64(half * BYTES)), there)

        each(builder, values, write)

    @intrinsic(VOID, tile, INT64, words, INT64, words, INT64, INT64)
    def finish_apart(builder, *values):
        pointers = ir.VectorType(x.scalar.as_pointer(), lanes)
        whole = ir.VectorType(_I64, lanes)
        function = ir.FunctionType(ir.VoidType(), [vector, pointers, _I32, flags])
        scatter = declared(builder, function, f"llvm.masked.scatter.{x.name}.v{lanes}p0")
        counted = ir.Constant(whole, list(range(lanes)))
        steps = builder.mul(splatted(builder, values[-1], whole), counted)

        def write(value: Any, at: Any, mask: Any) -> None:
            to = builder.inttoptr(builder.add(splatted(builder, at, whole), steps), pointers)
            builder.call(scatter, [value, to, _I32(size), x.chosen(builder, mask)])

        each(builder, values[:-1], write)

    @intrinsic(x.kind, *[INT64] * 5)
    def lay(builder, to, source, apart, count, present):
        mask, loaded = below(builder, count), []
        for row in range(rows):
            there = builder.select(builder.icmp_signed("<", _I64(row), present), mask, _I64(0))
            loaded.append(x.load_masked(builder, _offset(builder, source, apart, row), x.chosen(builder, there)))
        for i, part in enumerate(x.zipped(builder, [[row] for row in loaded])):
            left = below(builder, builder.sub(builder.mul(count, _I64(rows)), _I64(i * lanes)))
            x.store_masked(builder, part, builder.add(to, _I64(i * BYTES)), x.chosen(builder, left))
        nothing = x.zeros
        for row in loaded:
            nothing = x.fma(builder, row, x.zeros, nothing)
        return nothing

    return SimpleNamespace(
        places=places, start=start, step=step, finish=finish, finish_pairs=finish_pairs, finish_apart=finish_apart,
        lay=lay,
    )  # fmt: skip


# Products of vectors, added up over lanes -----------------------------------------------------------------------------


@cache
def correlations(dtype: str, rows: int, columns: int) -> SimpleNamespace:
    """Return the functions for tiles of rows x columns sums of products of vectors with vectors.

    places(at)                              a tuple of `columns` words, from memory
    spread(to, source, m)                   a vector at `to`: numbers from `source` on at lanes of m, 0 elsewhere
    empty()                                 a tile of zeros
    correlate(tile, left, cells, places, m) adds the product of each of the `rows` vectors that stand one after another
                                            at left, and each of those at cells + places, at lanes of m
    totals(tile, to)                        writes the sum over the lanes of each, row by row, in whole vectors
    """
    x = lanes_of(dtype)
    lanes, vector = x.lanes, x.vector
    array = ir.ArrayType(vector, rows * columns)
    tile = ScalarKind(f"tile {dtype} {rows} by {columns}", array)
    words, places = _places(columns)

    @intrinsic(tile)
    def empty(builder):
        return ir.Constant(array, None)

    @intrinsic(tile, tile, INT64, INT64, words, INT64)
    def correlate(builder, sums, left, right, places, mask):
        chosen = x.chosen(builder, mask)
        at = [builder.add(right, builder.extract_value(places, i)) for i in range(columns)]
        cells = [x.load_masked(builder, a, chosen) for a in at]
        parts = []
        for row in range(rows):
            factor = x.load(builder, builder.add(left, _I64(row * BYTES)))
            for i, cell in enumerate(cells):
                parts.append(x.fma(builder, factor, cell, builder.extract_value(sums, row * columns + i)))
        return _array(builder, vector, parts)

    @intrinsic(VOID, tile, INT64)
    def totals(builder, sums, to):
        parts = [builder.extract_value(sums, i) for i in range(rows * columns)]
        orders = [list(range(first, 2 * lanes, 2)) for first in range(2)]
        # Two vectors become one with the sums of adjacent lanes, until every lane is a total.
        for _ in range(lanes.bit_length() - 1):
            parts += [x.zeros] * (len(parts) % 2)
            parts = [
                builder.fadd(*(x.shuffle(builder, left, right, order) for order in orders))
                for left, right in zip(parts[::2], parts[1::2])
            ]
        for i, part in enumerate(parts):
            x.store(builder, part, builder.add(to, _I64(i * BYTES)))

    @intrinsic(VOID, INT64, INT64, INT64)
    def spread(builder, to, source, mask):
        function = ir.FunctionType(vector, [vector, vector, x.flags])
        expand = declared(builder, function, f"llvm.x86.avx512.mask.expand.{x.name}")
        popcount = declared(builder, ir.FunctionType(_I64, [_I64]), "llvm.ctpop.i64")
        count = builder.call(popcount, [mask])
        first = x.chosen(builder, builder.sub(builder.shl(_I64(1), count), _I64(1)))
        loaded = x.load_masked(builder, source, first)
        x.store(builder, builder.call(expand, [loaded, x.zeros, x.chosen(builder, mask)]), to)

    return SimpleNamespace(places=places, spread=spread, empty=empty, correlate=correlate, totals=totals)
