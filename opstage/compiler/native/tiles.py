"""Tiles of sums kept in registers: products of single or of contiguous numbers, read in place, with packed panels."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

from llvmlite import ir

from .frontend import declared, intrinsic
from .frontend.types import INT64, VOID, ScalarKind
from .vectors import BYTES, masked, splatted, vector_kind, zipped

# Tiles of a matrix product, kept in registers, and what packs the operands that they read -----------------------------

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


# Tiles of sums kept in registers: products of single or of contiguous numbers, read in place, with packed panels ------

# Products of single numbers -------------------------------------------------------------------------------------------

# A tile has `rows` x `vectors` sums, each a vector. A step reads a number at each of `rows` given offsets and a
# vector from each of `vectors` panels, and adds all their products. So no lane is idle for numbers at any places: it
# is the counterpart of `tiles`, whose vectors are what is read in place.


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
        def function(builder, to, source, rows, count, columns, present):
            build(builder, rows_are(builder, source, rows), columns_are(builder, to, columns), count, present)

        return function

    return SimpleNamespace(turn=made(even, even), turn_to=made(even, listed), turn_from=made(listed, even))


# Products of contiguous numbers ---------------------------------------------------------------------------------------

# A tile has `rows` x `vectors` sums, each a vector. A step reads `vectors` vectors at given offsets and `rows`
# consecutive numbers from a panel, and adds all their products.


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
    size = 4 if dtype == "float32" else 8
    lanes = BYTES // size
    scalar = ir.FloatType() if dtype == "float32" else ir.DoubleType()
    vector = ir.VectorType(scalar, lanes)
    flags = ir.VectorType(ir.IntType(1), lanes)
    name = f"v{lanes}f{size * 8}"
    kind = vector_kind(dtype, lanes)
    tile = ScalarKind(f"tile {dtype} {rows} x {vectors}", ir.ArrayType(vector, rows * vectors))
    words = ScalarKind(f"places {vectors}", ir.ArrayType(_I64, vectors))
    void = ir.VoidType()

    def number(builder: Any, panel: Any, row: int) -> Any:
        at = builder.inttoptr(builder.add(panel, _I64(row * size)), scalar.as_pointer())
        return splatted(builder, builder.load(at), vector)

    def array(builder: Any, element: Any, parts: list[Any]) -> Any:
        value = ir.Constant(ir.ArrayType(element, len(parts)), ir.Undefined)
        for i, part in enumerate(parts):
            value = builder.insert_value(value, part, i)
        return value

    def fma(builder: Any, *values: Any) -> Any:
        return builder.call(declared(builder, ir.FunctionType(vector, [vector] * 3), f"llvm.fma.{name}"), values)

    def below(builder: Any, count: Any) -> Any:
        """Return the mask of the first `count` lanes, from 0 to all of them."""
        some = builder.icmp_signed(">", count, _I64(0))
        most = builder.icmp_signed(">=", count, _I64(lanes))
        mask = builder.sub(builder.shl(_I64(1), builder.select(most, _I64(0), count)), _I64(1))
        return builder.select(most, _I64((1 << lanes) - 1), builder.select(some, mask, _I64(0)))

    def masked_store(builder: Any, value: Any, at: Any, mask: Any) -> None:
        function = ir.FunctionType(void, [vector, vector.as_pointer(), _I32, flags])
        store = declared(builder, function, f"llvm.masked.store.{name}.p0")
        builder.call(
            store, [value, builder.inttoptr(at, vector.as_pointer()), _I32(size), masked(builder, mask, lanes)]
        )

    def build_places(builder: Any, at: Any) -> Any:
        first = builder.inttoptr(at, _I64.as_pointer())
        return array(builder, _I64, [builder.load(builder.gep(first, [_I64(i)])) for i in range(vectors)])

    def build_start(builder: Any, panel: Any) -> Any:
        numbers = [number(builder, panel, row) for row in range(rows)]
        return array(builder, vector, [first for first in numbers for _ in range(vectors)])

    def build_step(builder: Any, sums: Any, at: Any, places: Any, panel: Any) -> Any:
        addresses = [builder.add(at, builder.extract_value(places, i)) for i in range(vectors)]
        cells = [builder.load(builder.inttoptr(a, vector.as_pointer()), align=size) for a in addresses]
        parts = []
        for row in range(rows):
            factor = number(builder, panel, row)
            for i, cell in enumerate(cells):
                parts.append(fma(builder, factor, cell, builder.extract_value(sums, row * vectors + i)))
        return array(builder, vector, parts)

    def each(builder: Any, values: tuple[Any, ...], write: Callable[[Any, Any, Any], None]) -> None:
        """Call `write(value, address, mask)` for every vector of a tile."""
        sums, to, places, apart, masks, count = values
        for row in range(rows):
            there = builder.icmp_signed("<", _I64(row), count)
            line = builder.add(to, builder.mul(apart, _I64(row)))
            for i in range(vectors):
                mask = builder.select(there, builder.extract_value(masks, i), _I64(0))
                write(
                    builder.extract_value(sums, row * vectors + i),
                    builder.add(line, builder.extract_value(places, i)),
                    mask,
                )

    def build_finish(builder: Any, *values: Any) -> None:
        function = ir.FunctionType(vector, [vector, vector, flags])
        compress = declared(builder, function, f"llvm.x86.avx512.mask.compress.{name}")
        popcount = declared(builder, ir.FunctionType(_I64, [_I64]), "llvm.ctpop.i64")

        def write(value: Any, at: Any, mask: Any) -> None:
            together = builder.call(compress, [value, ir.Constant(vector, None), masked(builder, mask, lanes)])
            masked_store(builder, together, at, below(builder, builder.call(popcount, [mask])))

        each(builder, values, write)

    def build_finish_pairs(builder: Any, *values: Any) -> None:
        """Spread the lanes over two vectors, of which every second number is written: faster than to scatter them."""
        function = ir.FunctionType(void, [vector, vector.as_pointer(), _I32, flags])
        store = declared(builder, function, f"llvm.masked.store.{name}.p0")

        def write(value: Any, at: Any, mask: Any) -> None:
            chosen, none = masked(builder, mask, lanes), ir.Constant(flags, None)
            for half in range(2):
                order = [half * lanes // 2 + i // 2 if i % 2 == 0 else lanes for i in range(lanes)]
                spread = ir.Constant(ir.VectorType(_I32, lanes), order)
                there = builder.shuffle_vector(chosen, none, spread)
                part = builder.shuffle_vector(value, ir.Constant(vector, None), spread)
                to = builder.inttoptr(builder.add(at, _I64(half * BYTES)), vector.as_pointer())
                builder.call(store, [part, to, _I32(size), there])

        each(builder, values, write)

    def build_finish_apart(builder: Any, *values: Any) -> None:
        pointers = ir.VectorType(scalar.as_pointer(), lanes)
        whole = ir.VectorType(_I64, lanes)
        function = ir.FunctionType(void, [vector, pointers, _I32, flags])
        scatter = declared(builder, function, f"llvm.masked.scatter.{name}.v{lanes}p0")
        counted = ir.Constant(whole, list(range(lanes)))
        steps = builder.mul(splatted(builder, values[-1], whole), counted)

        def write(value: Any, at: Any, mask: Any) -> None:
            to = builder.inttoptr(builder.add(splatted(builder, at, whole), steps), pointers)
            builder.call(scatter, [value, to, _I32(size), masked(builder, mask, lanes)])

        each(builder, values[:-1], write)

    def build_lay(builder: Any, to: Any, source: Any, apart: Any, count: Any, present: Any) -> Any:
        function = ir.FunctionType(vector, [vector.as_pointer(), _I32, flags, vector])
        load = declared(builder, function, f"llvm.masked.load.{name}.p0")
        zeros, mask = ir.Constant(vector, None), below(builder, count)
        loaded = []
        for row in range(rows):
            there = builder.select(builder.icmp_signed("<", _I64(row), present), mask, _I64(0))
            at = builder.inttoptr(builder.add(source, builder.mul(apart, _I64(row))), vector.as_pointer())
            loaded.append(builder.call(load, [at, _I32(size), masked(builder, there, lanes), zeros]))
        for i, part in enumerate(zipped(builder, [[row] for row in loaded], lanes)):
            left = builder.sub(builder.mul(count, _I64(rows)), _I64(i * lanes))
            masked_store(builder, part, builder.add(to, _I64(i * BYTES)), below(builder, left))
        nothing = zeros
        for row in loaded:
            nothing = fma(builder, row, zeros, nothing)
        return nothing

    return SimpleNamespace(
        places=intrinsic(words, INT64)(build_places),
        start=intrinsic(tile, INT64)(build_start),
        step=intrinsic(tile, tile, INT64, words, INT64)(build_step),
        finish=intrinsic(VOID, tile, INT64, words, INT64, words, INT64)(build_finish),
        finish_pairs=intrinsic(VOID, tile, INT64, words, INT64, words, INT64)(build_finish_pairs),
        finish_apart=intrinsic(VOID, tile, INT64, words, INT64, words, INT64, INT64)(build_finish_apart),
        lay=intrinsic(kind, *[INT64] * 5)(build_lay),
    )


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
    size = 4 if dtype == "float32" else 8
    lanes = BYTES // size
    scalar = ir.FloatType() if dtype == "float32" else ir.DoubleType()
    vector = ir.VectorType(scalar, lanes)
    flags = ir.VectorType(ir.IntType(1), lanes)
    name = f"v{lanes}f{size * 8}"
    array = ir.ArrayType(vector, rows * columns)
    tile = ScalarKind(f"tile {dtype} {rows} by {columns}", array)
    words = ScalarKind(f"places {columns}", ir.ArrayType(_I64, columns))

    def build_empty(builder: Any) -> Any:
        return ir.Constant(array, None)

    def build_correlate(builder: Any, sums: Any, left: Any, right: Any, places: Any, mask: Any) -> Any:
        fma = declared(builder, ir.FunctionType(vector, [vector] * 3), f"llvm.fma.{name}")
        kind = ir.FunctionType(vector, [vector.as_pointer(), _I32, flags, vector])
        load = declared(builder, kind, f"llvm.masked.load.{name}.p0")
        chosen = masked(builder, mask, lanes)

        def loaded(i: int) -> Any:
            at = builder.add(right, builder.extract_value(places, i))
            pointer = builder.inttoptr(at, vector.as_pointer())
            return builder.call(load, [pointer, _I32(size), chosen, ir.Constant(vector, None)])

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

    def build_totals(builder: Any, sums: Any, to: Any) -> None:
        parts = [builder.extract_value(sums, i) for i in range(rows * columns)]
        order = [ir.Constant(ir.VectorType(_I32, lanes), list(range(first, 2 * lanes, 2))) for first in range(2)]
        # Two vectors become one with the sums of adjacent lanes, until every lane is a total.
        for _ in range(lanes.bit_length() - 1):
            parts += [ir.Constant(vector, None)] * (len(parts) % 2)
            parts = [
                builder.fadd(*(builder.shuffle_vector(left, right, lanes_of) for lanes_of in order))
                for left, right in zip(parts[::2], parts[1::2])
            ]
        for i, part in enumerate(parts):
            at = builder.add(to, _I64(i * BYTES))
            builder.store(part, builder.inttoptr(at, vector.as_pointer()), align=size)

    def build_spread(builder: Any, to: Any, source: Any, mask: Any) -> None:
        kind = ir.FunctionType(vector, [vector.as_pointer(), _I32, flags, vector])
        load = declared(builder, kind, f"llvm.masked.load.{name}.p0")
        expand = declared(
            builder, ir.FunctionType(vector, [vector, vector, flags]), f"llvm.x86.avx512.mask.expand.{name}"
        )
        popcount = declared(builder, ir.FunctionType(_I64, [_I64]), "llvm.ctpop.i64")
        zeros, count = ir.Constant(vector, None), builder.call(popcount, [mask])
        first = masked(builder, builder.sub(builder.shl(_I64(1), count), _I64(1)), lanes)
        loaded = builder.call(load, [builder.inttoptr(source, vector.as_pointer()), _I32(size), first, zeros])
        value = builder.call(expand, [loaded, zeros, masked(builder, mask, lanes)])
        builder.store(value, builder.inttoptr(to, vector.as_pointer()), align=size)

    def build_places(builder: Any, at: Any) -> Any:
        first = builder.inttoptr(at, _I64.as_pointer())
        value = ir.Constant(ir.ArrayType(_I64, columns), ir.Undefined)
        for i in range(columns):
            value = builder.insert_value(value, builder.load(builder.gep(first, [_I64(i)])), i)
        return value

    return SimpleNamespace(
        places=intrinsic(words, INT64)(build_places),
        spread=intrinsic(VOID, INT64, INT64, INT64)(build_spread),
        empty=intrinsic(tile)(build_empty),
        correlate=intrinsic(tile, tile, INT64, INT64, words, INT64)(build_correlate),
        totals=intrinsic(VOID, tile, INT64)(build_totals),
    )
