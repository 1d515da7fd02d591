"""Machine code in the pool: products of matrices, schedules, and what is kept on disk."""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opstage.compiler.native import (
    Kernel,
    KernelCall,
    KernelSequence,
    blas_matmul,
    compile_kernel,
    compiler,
    find_blas,
    kernel_cache,
    multiply,
    one_thread,
)
from opstage.compiler.native.blas_matmul import ProductCut, gemm_kernel, gemm_words

rng = np.random.default_rng(0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize(("batch", "m", "n", "k"), [(1, 5, 3, 4), (1, 3, 70, 9), (6, 33, 17, 8), (2, 1, 1, 5)])
@pytest.mark.parametrize(("parts", "unit"), [(1, 0), (2, 0), (5, 0), (2, 16)])
def test_products_are_those_of_numpy(
    dtype: str, transpose_a: bool, transpose_b: bool, batch: int, m: int, n: int, k: int, parts: int, unit: int
) -> None:
    a, b = rng.normal(size=(batch, m, k)).astype(dtype), rng.normal(size=(batch, k, n)).astype(dtype)
    left = np.ascontiguousarray(a.swapaxes(1, 2)) if transpose_a else a
    right = np.ascontiguousarray(b.swapaxes(1, 2)) if transpose_b else b
    c = np.full((batch, m, n), np.nan, dtype)
    kernel = gemm_kernel(dtype)
    assert kernel is not None
    at = left.ctypes.data, right.ctypes.data, c.ctypes.data
    leading = m if transpose_a else k, k if transpose_b else n
    steps = 0, m * k * a.itemsize, 0, k * n * a.itemsize
    words = gemm_words(
        dtype, at, (m, n, k), (transpose_a, transpose_b), leading, ProductCut(parts, unit), inner=batch, steps=steps
    )
    KernelSequence([KernelCall(kernel, batch * parts, np.array(words, np.uint64))]).run()
    np.testing.assert_allclose(c, a @ b, rtol=1e-4 if dtype == "float32" else 1e-12, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("order_x", ["C", "F", "strided"])
@pytest.mark.parametrize("order_y", ["C", "F", "strided"])
def test_a_large_product_is_that_of_numpy_however_its_operands_lie(dtype: str, order_x: str, order_y: str) -> None:
    def lying(x: Any, order: str) -> Any:
        return np.repeat(x, 2, axis=1)[:, ::2] if order == "strided" else np.array(x, order=order)  # type: ignore[call-overload]

    x, y = rng.normal(size=(201, 120)).astype(dtype), rng.normal(size=(120, 103)).astype(dtype)
    x.flags.writeable = False
    out = multiply(lying(x, order_x), lying(y, order_y))
    assert out.dtype == dtype
    np.testing.assert_allclose(out, x @ y, rtol=1e-4 if dtype == "float32" else 1e-12, atol=1e-4)
    np.testing.assert_array_equal(out, multiply(lying(x, order_x), lying(y, order_y)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("order_x", ["C", "F"])
@pytest.mark.parametrize("order_y", ["C", "F"])
@pytest.mark.parametrize(("m", "n", "k"), [(512, 96, 64), (77, 501, 130), (64, 367, 256)])
def test_a_product_has_the_bits_of_one_thread_on_several(
    dtype: str, order_x: Any, order_y: Any, m: int, n: int, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = rng.normal(size=(m, k)).astype(dtype, order=order_x), rng.normal(size=(k, n)).astype(dtype, order=order_y)
    found = []
    for threads in (1, 2):
        monkeypatch.setattr(blas_matmul, "workers", lambda threads=threads: threads)
        found.append(multiply(x, y))
    np.testing.assert_array_equal(*found)


def test_openblas_has_one_thread_until_the_last_that_asked_for_it_is_done() -> None:
    blas = find_blas()
    assert blas is not None
    threads = ctypes.CFUNCTYPE(ctypes.c_int)(blas.get_threads)
    before = threads()
    with one_thread:
        with one_thread:
            assert threads() == 1
        assert threads() == 1
    assert threads() == before


def counting() -> Any:
    from opstage.compiler.native.intrinsics import int64s

    def kernel(lo, hi, worker, arguments):  # type: ignore[no-untyped-def]
        w = int64s(arguments, 2)
        x = int64s(w[0], w[1])
        for i in range(lo, hi):
            x[i] = x[i] * 2 + 1

    return kernel


def run_counting(kernel: Kernel) -> list[int]:
    x = np.arange(7, dtype=np.int64)
    step = KernelCall(kernel, 7, np.array([x.ctypes.data, 7], np.uint64))
    KernelSequence((step, step._replace(parallel=False))).run()
    return x.tolist()


EXPECTED = [4 * i + 3 for i in range(7)]


@pytest.fixture
def empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiler, "_kernels", {})
    return tmp_path


def test_steps_run_in_order_and_every_task_once() -> None:
    assert run_counting(compile_kernel("counting", "counting", counting)) == EXPECTED


def test_a_kernel_is_kept_and_found_again(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, compiler.__name__)
    compile_kernel("counting", "kept", counting)
    assert caplog.text.count("compiling kernel counting") == 1
    monkeypatch.setattr(compiler, "_kernels", {})
    assert run_counting(compile_kernel("counting", "kept", counting)) == EXPECTED
    assert caplog.text.count("compiling kernel counting") == 1
    compile_kernel("counting", "other content", counting)
    assert caplog.text.count("compiling kernel counting") == 2


@pytest.mark.parametrize("damage", [b"", b"short", None])
def test_a_damaged_entry_is_made_anew(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, damage: bytes | None
) -> None:
    caplog.set_level(logging.DEBUG, kernel_cache.__name__)
    compile_kernel("counting", "damaged", counting)
    (entry,) = empty_folder.rglob("*.o")
    whole = entry.read_bytes()
    entry.write_bytes(damage if damage is not None else whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    monkeypatch.setattr(compiler, "_kernels", {})
    assert run_counting(compile_kernel("counting", "damaged", counting)) == EXPECTED
    assert "is damaged" in caplog.text
    caplog.clear()
    monkeypatch.setattr(compiler, "_kernels", {})
    assert run_counting(compile_kernel("counting", "damaged", counting)) == EXPECTED
    assert not caplog.text


def test_a_full_disk_is_no_obstacle(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kernel_cache.os, "replace", fail)
    assert run_counting(compile_kernel("counting", "full disk", counting)) == EXPECTED
    assert not list(empty_folder.rglob("*.o*"))


def test_another_process_runs_what_was_kept(tmp_path: Path) -> None:
    """Code that calls the C library, in a process in which nothing is compiled."""
    program = (
        "import logging, numpy as np, opstage\n"
        "logging.basicConfig(level=logging.DEBUG, format='%(message)s')\n"
        "logging.getLogger('numba').setLevel(logging.WARNING)\n"
        "x = np.linspace(0.5, 2, 7, dtype=np.float32)\n"
        "y = opstage.run(lambda ops, x: ops.exp(ops.log(x)), x, options=opstage.Options(backend='compiled'))\n"
        "np.testing.assert_allclose(y, x, rtol=1e-5)\n"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    said = [
        subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True)
        for _ in range(2)
    ]
    assert ["compiling kernel" in run.stderr for run in said] == [True, False]


GROWTH = """
import ctypes, gc, sys
import numpy, opstage
from opstage.compiler.codegen.cpu.arguments import LoopSource

def resident():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(open("/proc/self/statm").read().split()[1]) * 4096

def compile_one(i):
    body = f'''def kernel(lo, hi, worker, arguments):
    w = int64s(arguments, 3)
    for i in range(lo, hi):
        x = load_a(w[0], i)
        y = exp(x * c) + float32({i}) * tanh(x)
        store_b(w[1], i, gelu_tanh_float32(y) * x + silu_float32(y))
'''
    accesses = (("load_a", "load", "float32", "read"), ("store_b", "store", "float32", "written 0"))
    LoopSource(f"k{i}", f"c = float32({i}.5)", body, accesses).compiled()

for i in range(20):
    compile_one(i)
before = resident()
for i in range(20, 60):
    compile_one(i)
print((resident() - before) / 40)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_little_stays_of_a_kernel_that_was_compiled(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", GROWTH], env=environment, check=True, capture_output=True, text=True)
    assert float(done.stdout) < 120_000  # bytes; it is about a third, and was 850,000
