"""Matrix products on processors with AVX-512: C[i, j] = op(A[i, j]) · op(B[i, j]) for i, j in a stack of matrices.

The sums of a tile, some rows by two vectors, stay in registers while k goes through a block. The tile of the first rows
packs the two columns of vectors of B that it reads, and those of further rows read the packed panel; meanwhile the next
panel is fetched. A is read in place, a number for all lanes, or from a packed copy if its rows would evict each other
from the cache. Goto and van de Geijn, Anatomy of high-performance matrix multiplication, 2008.

An element is the sum of the blocks of k, in order, each summed in order by fused multiply-adds. The blocks depend on k
alone, and so do the bits of an element: not on other sizes, nor on the layout, nor on how workers share the tasks.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any, NamedTuple, TypeVar

from .compiler import Kernel, compile_kernel
from .kernel_cache import has_avx512

# mypy: disable-error-code="no-untyped-call, no-untyped-def"


HEIGHTS = 12, 8
"""Rows of tiles: with two vectors, 24 sums of 32 registers. The lower one is for the rest, and twice for 16 rows."""

W = TypeVar("W")

_LEAST = {"float32": 3 << 20, "float64": 4 << 20}
"""Multiplications; OpenBLAS has a method for small products, which is as fast or faster up to here."""

_SHALLOW, _LEAST_SHALLOW, _LEAST_ROWS = 64, 1 << 16, 24
"""The k up to which that method is slower if B is stored transposed, with so many multiplications and rows."""

_VECTOR, _LINE = 64, 64  # bytes of a register, and of a line of the caches
_DEPTH = 1536  # bytes: the panel, of two vectors in each step, then takes a tenth of a second cache of 1 MiB
_ROWS = 192  # of a task at most: the packed A then takes a third of it
_NEARBY = 1 << 18  # bytes of a B that stays in it, and need not be fetched
_AHEAD = 16  # steps before which a tile fetches what it reads of A, and of B if it packs it
_PAGE = 4096  # bytes after which an address has the same set of the first cache, which holds 8 lines
_WORTH_PACKING = {False: 4, True: 20}
"""Panels that read A again, from which on a packed copy pays; more if A is transposed, for its lines then follow each
other in a tile and do not have to stay."""
_LITTLE, _TASKS = 1 << 16, 8
"""Multiplications of a task, at least: starting the workers takes as long as fewer. Tasks, if they are not little then:
for equal shares."""


class BlockedCut(NamedTuple):
    """The tasks of a product: `rows` x `columns` of C, by blocks of k of `depth`; and whether A is packed."""

    rows: int
    columns: int
    depth: int
    packs: bool

    def tasks(self, m: int, n: int) -> int:
        """Return their number in each matrix."""
        return -(-m // self.rows) * -(-n // self.columns)

    def workspace(self, dtype: str) -> int:
        """Return the bytes of a worker: a tile, the panel of B, and A."""
        packed = (self.rows + HEIGHTS[0]) * self.depth * _size(dtype) + _VECTOR if self.packs else 0
        return (HEIGHTS[0] + self.depth) * 2 * _VECTOR + -(-packed // _VECTOR) * _VECTOR


def serves(dtype: str, m: int, n: int, k: int, transposed_b: bool) -> bool:
    """Return whether such a product is computed here, and not by the BLAS, which is as fast or faster for others."""
    if not has_avx512() or m < HEIGHTS[1] or n * _size(dtype) < 2 * _VECTOR:
        return False
    multiplications = m * n * k
    shallow = transposed_b and k <= _SHALLOW and m >= _LEAST_ROWS
    return multiplications >= (_LEAST_SHALLOW if shallow else _LEAST[dtype])


def cut_blocked(dtype: str, m: int, n: int, k: int, batch: int, transposed_a: bool, leading_a: int) -> BlockedCut:
    """Return how each product (m, k)·(k, n) of a stack of `batch` is cut. Only `depth` decides bits."""
    size = _size(dtype)
    columns = 2 * _VECTOR // size
    panels = -(-n // columns)
    wanted = min(-(-_TASKS // (batch * panels)), m * n * k // _LITTLE, m // (4 * HEIGHTS[0]))
    rows = _even(m, -(-m // max(1, -(-m // _ROWS), wanted)))
    wide = min(panels, -(-_LITTLE // (rows * columns * k)))
    apart = leading_a * size % _PAGE
    collides = min(apart, _PAGE - apart) * HEIGHTS[0] < 2 * _LINE
    packs = collides and panels >= _WORTH_PACKING[transposed_a]
    return BlockedCut(rows, wide * columns, _even(k, _DEPTH // size), packs)


def _even(total: int, most: int) -> int:
    """Return the length of equal parts, none longer than `most`."""
    return -(-total // -(-total // most))


def _size(dtype: str) -> int:
    return 4 if dtype == "float32" else 8


@cache
def blocked_kernel(dtype: str) -> Kernel:
    """Return the kernel for float32 or float64."""
    content = "".join([inspect.getsource(part) for part in (_function, _tile_of, _packer)]) + dtype
    return compile_kernel(f"product_{dtype}", content, lambda: _function(dtype))


def blocked_words(
    at: tuple[W, W, W],
    workspace: tuple[W, int],
    sizes: tuple[int, int, int],
    transposed: tuple[bool, bool],
    leading: tuple[int, int],
    cut: BlockedCut,
    *,
    inner: int = 1,
    steps: tuple[int, int, int, int] = (0, 0, 0, 0),
) -> tuple[W | int, ...]:
    """Return the kernel's arguments: those of `gemm_words`, and the workspace with the bytes of a worker."""
    return (*at, *workspace, *sizes, *map(int, transposed), *leading, inner, *steps, *map(int, cut))


def _tile_of(dtype: str, rows: int, vectors: int, packs: bool) -> Any:
    """Return the function that computes a tile, and fetches lines of the next panel; it returns where that ended.

    a        the first number, bytes from row to row and from column to column
    present  rows that there are
    b        the panel; for a tile that `packs` it, also its source, and bytes from row to row there
    c        the tile's first element, bytes from row to row, and whether to add to what is there
    next     a line to fetch, how many are left in its row, and how many a row has; every how many steps one is
             fetched; bytes from row to row
    """
    from .tiles import matrix_tiles, packing

    t, p = matrix_tiles(dtype, rows, vectors), packing(dtype)
    zeros, offsets, step, step_packing, write, add = t.zeros, t.offsets, t.step, t.step_packing, t.write, t.add
    fetch, fetch_near, line, ahead, panel_step = p.fetch, p.fetch_near, _LINE, _AHEAD, vectors * _VECTOR
    last = rows * _size(dtype) - 1

    def compute(a, present, b, c, depth, following):
        column, a_apart, a_step = a
        panel, source, b_apart = b
        to, apart, added = c
        at, count, per, every, row_step = following
        tile, numbers = zeros(), offsets(a_apart, present)
        done = 0
        while done < depth:
            fetch(at)
            count -= 1
            if count > 0:
                at += line
            else:
                at += row_step - (per - 1) * line
                count = per
            stop = min(done + every, depth)
            for _ in range(done, stop):
                fetch_near(column + ahead * a_step)  # if A is transposed, each step reads another line
                fetch_near(column + ahead * a_step + last)
                if packs:
                    fetch_near(source + ahead * b_apart)
                    fetch_near(source + ahead * b_apart + line)
                    fetch_near(source + ahead * b_apart + panel_step - 1)
                    tile = step_packing(tile, source, column, numbers, panel)
                    source += b_apart
                else:
                    tile = step(tile, panel, column, numbers)
                panel += panel_step
                column += a_step
            done = stop
        if added:
            add(tile, to, apart)
        else:
            write(tile, to, apart)
        return at, count

    return compute


def _packer(dtype: str) -> Any:
    """Return `pack(to, step, source, apart, across, count, present)`: write `count` vectors, `step` apart, of a number
    from each of `present` rows, which are `apart` from each other if `across`; else the vectors are, in the source."""
    from .tiles import packing
    from .vectors import registers, vectors

    m, r, v = packing(dtype), registers(dtype), vectors(dtype)
    store, load, load_some, load_apart = r.store, r.load, r.load_some, r.load_apart
    size, lanes, between, turn, piece = v.size, v.lanes, v.between, m.turn, m.piece

    def pack(to, step, source, apart, across, count, present):
        mask = between(0, present)
        if across:
            whole = count // piece * piece
            for i in range(0, whole, piece):
                turn(to + i * step, step, source + i * size, apart, present)
            for i in range(whole, count):
                store(to + i * step, load_apart(source + i * size, apart, mask))
        elif present >= lanes:
            for i in range(count):
                store(to + i * step, load(source + i * apart))
        else:
            for i in range(count):
                store(to + i * step, load_some(source + i * apart, mask))

    return pack


def _function(dtype: str) -> Any:
    from .intrinsics import int64s
    from .tiles import packing
    from .vectors import vectors

    v, p, pack = vectors(dtype), packing(dtype), _packer(dtype)
    size, lanes, move, accumulate, between, fetch_written = (
        v.size, v.lanes, v.move, v.accumulate, v.between, p.fetch_written
    )  # fmt: skip
    high_first, low_first = (_tile_of(dtype, rows, 2, True) for rows in HEIGHTS)
    high_two, low_two = (_tile_of(dtype, rows, 2, False) for rows in HEIGHTS)
    high_one, low_one = (_tile_of(dtype, rows, 1, False) for rows in HEIGHTS)
    (high, low), vector, line, nearby = HEIGHTS, _VECTOR, _LINE, _NEARBY

    def height_of(rows):
        """Return the rows of the next tile: the last ones have few that do not exist."""
        return low if rows <= low or (rows > high and rows <= 2 * low) else high

    def kernel(lo, hi, worker, arguments):
        (
            first_a, first_b, first_c, workspace, own_bytes, m, n, k, transposed_a, transposed_b, leading_a, leading_b,
            inner, a_outer, a_inner, b_outer, b_inner, block, width, deep, packed_a,
        ) = int64s(arguments, 21)  # fmt: skip
        own, lda, ldb = workspace + worker * own_bytes, leading_a * size, leading_b * size
        turned_a, turned_b, packs = transposed_a != 0, transposed_b != 0, packed_a != 0
        a_row, a_column = (size, lda) if turned_a else (lda, size)
        b_row, b_column = (size, ldb) if turned_b else (ldb, size)
        blocks, parts = (m + block - 1) // block, (n + width - 1) // width
        panel = own + high * 2 * vector
        packed = panel + deep * 2 * vector
        task = lo
        while task < hi:
            # All tasks of the same rows at once, so that A is packed once for them.
            matrix, row0, part = task // (blocks * parts), task // parts % blocks * block, task % parts
            last = min(parts, part + hi - task)
            task += last - part
            i, j = matrix // inner, matrix % inner
            rows, end = min(block, m - row0), min(n, last * width)
            a = first_a + i * a_outer + j * a_inner + row0 * a_row
            b = first_b + i * b_outer + j * b_inner
            c = first_c + (matrix * m + row0) * n * size
            for p in range(0, k, deep):
                depth = min(deep, k - p)
                if packs:
                    to, row = packed, 0
                    while row < rows:
                        height = height_of(rows - row)
                        source = a + row * a_row + p * a_column
                        # The last rows first: what a vector has beyond them stands where the next number comes.
                        for i in range((height - 1) // lanes, -1, -1):
                            there, present = source + i * lanes * a_row, min(height, rows - row) - i * lanes
                            pack(to + i * vector, height * size, there, lda, not turned_a, depth, present)
                        to += height * size * depth
                        row += height
                # The lines of the next panel in each row of B, and in how many of the tiles' steps they are fetched.
                per = (depth * size + line - 1) // line if turned_b else 2 * vector // line
                every = max(1, rows // (2 * high)) if k * n * size > nearby else depth
                for column in range(part * width, end, 2 * lanes):
                    columns = end - column
                    source = b + p * b_row + column * b_column
                    first, vectors = not turned_b and columns >= 2 * lanes, 2 if columns > lanes else 1
                    if not first:
                        for i in range(vectors):
                            there, present = source + i * lanes * b_column, min(lanes, columns - i * lanes)
                            pack(panel + i * vector, vectors * vector, there, ldb, turned_b, depth, present)
                    following, count = source + 2 * lanes * b_column, per
                    to, row = packed, 0
                    while row < rows:
                        height = height_of(rows - row)
                        present = min(height, rows - row)
                        left = (to, size, height * size)
                        if not packs:
                            left = (a + row * a_row + p * a_column, a_row, a_column)
                        into = c + (row * n + column) * size
                        for i in range(present):
                            fetch_written(into + i * n * size)
                            fetch_written(into + i * n * size + line)
                            fetch_written(into + i * n * size + 2 * vector - 1)
                        is_whole = present == height and columns >= vectors * lanes
                        target = (into, n * size, p > 0)
                        if not is_whole:
                            target = (own, vectors * vector, False)
                        right, ahead = (panel, source, ldb), (following, count, per, every, ldb)
                        if first:
                            if height == high:
                                following, count = high_first(left, present, right, target, depth, ahead)
                            else:
                                following, count = low_first(left, present, right, target, depth, ahead)
                        elif vectors == 2:
                            if height == high:
                                following, count = high_two(left, present, right, target, depth, ahead)
                            else:
                                following, count = low_two(left, present, right, target, depth, ahead)
                        elif height == high:
                            following, count = high_one(left, present, right, target, depth, ahead)
                        else:
                            following, count = low_one(left, present, right, target, depth, ahead)
                        if not is_whole:
                            for i in range(present * vectors):
                                mask = between(0, columns - i % vectors * lanes)
                                there = into + i // vectors * n * size + i % vectors * vector
                                if p > 0:
                                    accumulate(there, own + i * vector, mask)
                                else:
                                    move(there, own + i * vector, mask, mask)
                        first = False
                        to += height * size * depth
                        row += height

    return kernel
