"""Products of our own: their numbers, their bits, and what memory they touch."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest

import opstage
from opstage import Options
from opstage.compiler.codegen.cpu.kernels import NativeStep
from opstage.compiler.native import KernelCall, KernelSequence, avx512_matmul
from opstage.compiler.native.avx512_matmul import BlockedCut, blocked_kernel, blocked_words, cut_blocked, serves
from opstage.interpreters.graph.executor import CpuExecutor

DTYPES = "float32", "float64"
LAYOUTS = [(a, b) for a in (False, True) for b in (False, True)]
SIZES = (  # m, n and k: single rows, columns and terms, whole tiles, one more and one less, several blocks of each
    (1, 1, 1), (1, 40, 7), (50, 1, 3), (5, 6, 1), (8, 32, 16), (12, 32, 4), (13, 33, 5), (16, 16, 8), (16, 17, 9),
    (20, 31, 35), (23, 65, 2), (25, 48, 70), (47, 50, 385), (200, 36, 19), (193, 130, 400), (96, 200, 800),
)  # fmt: skip


class Product(NamedTuple):
    """A stack of products as a kernel is given it; operands are stored transposed where `transposed` says so."""

    a: Any
    b: Any
    c: Any
    transposed: tuple[bool, bool]

    def run(
        self, workers: int = 1, *, cut: BlockedCut | None = None, workspace: int | None = None, only: int | None = None
    ) -> bytes:
        """Compute c, each of the workers its share of the tasks, or `only` one of them; return its bytes."""
        dtype, (batch, m, n) = str(self.c.dtype), self.c.shape
        k = self.a.shape[1 if self.transposed[0] else 2]
        leading = tuple(max(x.strides[1] // x.itemsize, x.shape[2]) for x in (self.a, self.b))
        cut = cut or cut_blocked(dtype, m, n, k, batch, self.transposed[0], leading[0])
        room = cut.workspace(dtype)
        own = np.empty(workers * room, np.uint8)
        words = blocked_words(
            (self.a.ctypes.data, self.b.ctypes.data, self.c.ctypes.data),
            (own.ctypes.data if workspace is None else workspace, room),
            (m, n, k),
            self.transposed,
            leading,  # type: ignore[arg-type]
            cut,
            inner=batch,
            steps=(0, self.a.strides[0], 0, self.b.strides[0]),
        )
        arguments = np.array(words, np.uint64)
        run = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3, ctypes.c_uint64)(blocked_kernel(dtype).address)
        tasks = batch * cut.tasks(m, n)
        borders = [tasks * worker // workers for worker in range(workers + 1)]
        for worker, (start, stop) in enumerate(pairwise(borders)):
            if only is None or worker == only:
                run(start, stop, worker, arguments.ctypes.data)
        return bytes(self.c.tobytes())

    @property
    def factors(self) -> tuple[Any, Any]:
        """The factors, none of them transposed."""
        a, b = (x.swapaxes(1, 2) if turned else x for x, turned in zip((self.a, self.b), self.transposed))
        return a, b


def product(
    dtype: str, m: int, n: int, k: int, transposed: tuple[bool, bool], *, batch: int = 1, apart: int = 0
) -> Product:
    """Return a product of random numbers whose operands have `apart` more numbers from one row to the next."""
    rng = np.random.default_rng(m * n + k)
    shapes = [(batch, *(shape[::-1] if turned else shape)) for shape, turned in zip(((m, k), (k, n)), transposed)]
    a, b = (
        rng.normal(size=(count, rows, columns + apart)).astype(dtype)[:, :, :columns] for count, rows, columns in shapes
    )
    return Product(a, b, np.full((batch, m, n), np.nan, dtype), transposed)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("transposed", LAYOUTS)
@pytest.mark.parametrize("apart", [0, 3])
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_products_are_those_of_numpy(
    dtype: str, transposed: tuple[bool, bool], apart: int, m: int, n: int, k: int
) -> None:
    made = product(dtype, m, n, k, transposed, batch=3, apart=apart)
    made.run()
    a, b = (x.astype(np.float64) for x in made.factors)
    error = np.abs(made.c - a @ b) / (np.abs(a) @ np.abs(b))
    assert error.max() <= 40 * np.finfo(dtype).eps


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("transposed", LAYOUTS)
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_bits_depend_on_no_share_cut_or_address(
    dtype: str, transposed: tuple[bool, bool], m: int, n: int, k: int
) -> None:
    made = product(dtype, m, n, k, transposed, batch=2, apart=5)
    expected, lanes = made.run(), 64 // made.c.itemsize
    for workers in (2, 3, 7):
        made.c[:] = np.nan
        assert made.run(workers) == expected
    depth = cut_blocked(dtype, m, n, k, 2, False, k).depth
    for rows, columns, packs in ((8, 2 * lanes, True), (24, 4 * lanes, False), (m, 2 * lanes * n, True)):
        made.c[:] = np.nan
        assert made.run(cut=BlockedCut(rows, columns, depth, packs)) == expected
    moved = [np.empty(x.size + 1, dtype)[1:].reshape(x.shape) for x in (made.a, made.b, made.c)]
    for to, x in zip(moved, made):
        to[:] = x
    assert Product(moved[0], moved[1], moved[2], transposed).run() == expected


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("workers", [1, 2, 3, 11])
def test_each_worker_computes_its_share_and_nothing_else(dtype: str, workers: int) -> None:
    made = product(dtype, 100, 150, 20, (False, False), batch=3)
    cut = BlockedCut(30, 32, 20, True)
    times = np.zeros(made.c.shape, np.int64)
    for worker in range(workers):
        made.c[:] = np.nan
        made.run(workers, cut=cut, only=worker)
        times += np.isfinite(made.c)
    assert (times == 1).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_of_an_element_depend_on_its_row_and_column_alone(dtype: str) -> None:
    whole = product(dtype, 61, 75, 900, (False, False))
    whole.run()
    for rows, columns in ((slice(0, 8), slice(0, 16)), (slice(20, 61), slice(3, 36)), (slice(60, 61), slice(70, 75))):
        part = Product(
            np.ascontiguousarray(whole.a[:, rows].swapaxes(1, 2)),
            np.ascontiguousarray(whole.b[:, :, columns].swapaxes(1, 2)),
            np.empty_like(whole.c[:, rows, columns], order="C"),
            (True, True),
        )
        part.run()
        np.testing.assert_array_equal(part.c, whole.c[:, rows, columns])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_stack_has_two_axes_in_any_order_and_repeats_operands(dtype: str) -> None:
    m, n, k = 20, 40, 9
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(3, 2, m, k)).astype(dtype), rng.normal(size=(3, k, n)).astype(dtype)
    c = np.full((2, 3, m, n), np.nan, dtype)
    cut = cut_blocked(dtype, m, n, k, 6, False, k)
    own = np.empty(cut.workspace(dtype), np.uint8)
    steps = (a.strides[1], a.strides[0], 0, b.strides[0])
    at, workspace = (a.ctypes.data, b.ctypes.data, c.ctypes.data), (own.ctypes.data, own.size)
    words = blocked_words(at, workspace, (m, n, k), (False, False), (k, n), cut, inner=3, steps=steps)
    alone = KernelCall(blocked_kernel(dtype), 6 * cut.tasks(m, n), np.array(words, np.uint64), parallel=False)
    KernelSequence([alone]).run()
    np.testing.assert_allclose(c, a.swapaxes(0, 1) @ b, rtol=0, atol=1e-5 if dtype == "float32" else 1e-13)


@contextmanager
def guarded(nbytes: int, *, at_end: bool) -> Iterator[int]:
    """Yield the address of memory that ends, or begins, where a page begins, or ends, that nobody may touch."""
    page = mmap.PAGESIZE
    size = -(-nbytes // page) * page
    memory = mmap.mmap(-1, size + 2 * page)
    first = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for at in (first, first + page + size):
        assert protect(at, page, 0) == 0
    try:
        yield first + page + (size - nbytes if at_end else 0)
    finally:
        for at in (first, first + page + size):
            assert protect(at, page, mmap.PROT_READ | mmap.PROT_WRITE) == 0


def array_at(address: int, like: Any) -> Any:
    """Return an array of the same shape and values at an address."""
    held = (ctypes.c_char * like.nbytes).from_address(address)
    made = np.frombuffer(held, like.dtype).reshape(like.shape)
    made[:] = like
    return made


@pytest.mark.skipif(not hasattr(mmap, "PROT_READ"), reason="pages are protected by mprotect")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("transposed", LAYOUTS)
@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_nothing_around_operands_results_and_workspace_is_touched(
    dtype: str, transposed: tuple[bool, bool], at_end: bool, m: int, n: int, k: int
) -> None:
    made = product(dtype, m, n, k, transposed, batch=2)
    a, b, c = (np.ascontiguousarray(x) for x in made[:3])
    usual = cut_blocked(dtype, m, n, k, 2, transposed[0], a.shape[2])
    for cut in (usual, usual._replace(packs=not usual.packs)):
        room = cut.workspace(dtype)
        with (
            guarded(a.nbytes, at_end=at_end) as to_a,
            guarded(b.nbytes, at_end=at_end) as to_b,
            guarded(c.nbytes, at_end=at_end) as to_c,
            guarded(3 * room, at_end=at_end) as own,
        ):
            there = Product(array_at(to_a, a), array_at(to_b, b), array_at(to_c, c), transposed)
            assert there.run(3, cut=cut, workspace=own) == made.run(cut=cut)


@pytest.mark.parametrize("dtype", DTYPES)
def test_infinities_nan_and_denormal_numbers_are_those_of_numpy(dtype: str) -> None:
    made = product(dtype, 30, 40, 50, (False, True))
    tiny = np.finfo(dtype).smallest_subnormal
    made.a[0, 3, 4], made.a[0, 17, 0], made.a[0, 29, 49] = np.inf, np.nan, -np.inf
    made.b[0, 39, 49] = made.b[0, 7, 4] = 0
    made.a[0, 5] = tiny * np.arange(50)
    made.b[0, 9] = 3
    made.run()
    with np.errstate(invalid="ignore"):
        expected = np.matmul(*made.factors)
    np.testing.assert_array_equal(np.isnan(made.c), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(made.c), np.isinf(expected))
    assert made.c[0, 5, 9] == 3 * tiny * np.arange(50).sum()
    empty = product(dtype, 9, 9, 4, (False, False))
    empty.a[:] = -0.0
    empty.run()
    assert not empty.c.any()


PROGRAMS = {
    "plain": (lambda o, x, y: o.matmul(x, y), np.matmul, (130, 200), (200, 170)),
    "transposed": (lambda o, x, y: o.matmul(o.transpose2d(x), y), lambda x, y: x.T @ y, (200, 130), (200, 170)),
    "by transposed": (lambda o, x, y: o.matmul(x, o.transpose2d(y)), lambda x, y: x @ y.T, (130, 200), (170, 200)),
    "of parts": (
        lambda o, x, y: o.matmul(x[3:140], y[:, 20:]),
        lambda x, y: x[3:140] @ y[:, 20:],
        (150, 200),
        (200, 200),
    ),
    "a stack": (lambda o, x, y: o.bmm(x, y), np.matmul, (3, 130, 200), (3, 200, 170)),
    "a stack by one": (
        lambda o, x, y: o.bmm(x, o.broadcast_to(y, shape=(5, 200, 170))),
        np.matmul,
        (5, 130, 200),
        (1, 200, 170),
    ),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("ours", [False, True])
def test_a_plan_has_the_kernel_that_its_sizes_and_the_processor_decide(
    dtype: str, name: str, ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(avx512_matmul, "has_avx512", lambda: ours)
    program, reference, left, right = PROGRAMS[name]
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=left).astype(dtype), rng.normal(size=right).astype(dtype)
    options = Options(dtype=dtype)
    executor = CpuExecutor(opstage.record(program, x, y, options=options), options)
    (out,) = executor.run([x, y])
    found = [step.loop.kernel for step in executor.plan.steps if isinstance(step, NativeStep)]
    expected = reference(x.astype(np.float64), y.astype(np.float64))
    np.testing.assert_allclose(out, expected, rtol=0, atol=2e-4 if dtype == "float32" else 1e-12)
    assert (blocked_kernel(dtype) in found) == ours
    assert {kernel.name for kernel in found} >= {f"product_{dtype}"}


def test_the_blas_keeps_what_it_does_as_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avx512_matmul, "has_avx512", lambda: True)
    assert serves("float32", 128, 2048, 2048, transposed_b=False)
    assert serves("float32", 64, 64, 32, transposed_b=True)
    for m, n, k in ((64, 64, 32), (1, 4096, 4096), (4096, 10, 4096), (100, 100, 100)):
        assert not serves("float32", m, n, k, transposed_b=False)
    monkeypatch.setattr(avx512_matmul, "has_avx512", lambda: False)
    assert not serves("float32", 2048, 2048, 2048, transposed_b=False)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_worker_takes_little_memory(dtype: str) -> None:
    for m, n, k in ((4096, 4096, 4096), (300, 5000, 100), (100_000, 64, 100_000)):
        cut = cut_blocked(dtype, m, n, k, 1, False, 4096)
        assert cut.workspace(dtype) < 1 << 19 and cut._replace(packs=True).workspace(dtype) < 1 << 19
