"""Bits do not depend on the number of threads."""

from __future__ import annotations

import ctypes
import subprocess
from itertools import pairwise

import numpy as np
import pytest

from opstage.compiler.codegen.cpu.source import parts_of_rows
from opstage.compiler.native import find_blas, one_thread
from opstage.compiler.native.blas_matmul import cut_product, gemm_kernel, gemm_words
from tests.mpi.started import ENVIRONMENT, ROOT
from tests.mpi.started import sys as python

RUNS = (  # model, interpreter, steps, mesh, zero, bucket, rows of the batch
    *[f"{name}:{backend}:3:" for name in ("mlp", "cnn", "gpt", "resnet") for backend in ("eager", "compiled")],
    "mlp:compiled:2::0:0:128",
    "gpt:compiled:2::0:0:16",
    "cnn:compiled:2::0:0:2",
    "cnn:eager:2::0:0:33",
)


def _digests(threads: int) -> list[str]:
    environment = {**ENVIRONMENT, "NUMBA_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}
    words = (python.executable, "-m", "tests.mpi.digests", *RUNS)
    done = subprocess.run(words, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if line.startswith(RUNS)]


@pytest.fixture(scope="module")
def alone() -> list[str]:
    found = _digests(1)
    assert len(found) == len(RUNS)
    return found


@pytest.mark.parametrize(
    "threads", [pytest.param(2, marks=pytest.mark.slow), 3, pytest.param(4, marks=pytest.mark.slow)]
)
def test_training_has_the_bits_of_one_thread(threads: int, alone: list[str]) -> None:
    assert _digests(threads) == alone


SIZES = (  # m, n and k: little products, those at the limit of OpenBLAS's method for small ones, large ones, thin ones
    (64, 10, 256), (256, 10, 64), (512, 64, 64), (64, 64, 500), (1024, 64, 64), (64, 256, 784), (784, 256, 64),
    (33, 500, 300), (130, 70, 1000), (239, 197, 223), (463, 866, 79), (126, 287, 242), (1000, 3, 1000), (1, 1363, 1586),
    (2000, 1, 1100), (40, 40, 3000), (700, 401, 90),
)  # fmt: skip


@pytest.mark.skipif(find_blas() is None, reason="without OpenBLAS products are NumPy's")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
@pytest.mark.parametrize("transposed", [(False, False), (False, True), (True, False)])
def test_products_have_the_same_bits_however_workers_share_them(
    dtype: str, m: int, n: int, k: int, transposed: tuple[bool, bool]
) -> None:
    rng = np.random.default_rng(m * n + k)
    a, b = rng.normal(size=m * k).astype(dtype), rng.normal(size=k * n).astype(dtype)
    kernel, cut = gemm_kernel(dtype), cut_product(dtype, m, n, k)
    assert kernel is not None
    run = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3, ctypes.c_uint64)(kernel.address)

    def product(workers: int) -> bytes:
        c = np.full((m, n), np.nan, dtype)
        at = a.ctypes.data, b.ctypes.data, c.ctypes.data
        leading = m if transposed[0] else k, k if transposed[1] else n
        words = np.array(gemm_words(dtype, at, (m, n, k), transposed, leading, cut), np.uint64)
        borders = [cut.parts * worker // workers for worker in range(workers + 1)]
        with one_thread:
            for worker, (start, stop) in enumerate(pairwise(borders)):
                run(start, stop, worker, words.ctypes.data)
        assert np.isfinite(c).all()
        return c.tobytes()

    assert len({product(workers) for workers in (1, 2, 3, 4, 7)}) == 1


def test_parts_are_neither_empty_nor_more_than_rows() -> None:
    for rows in (1, 2, 31, 64, 100, 10_000):
        assert 1 <= parts_of_rows(rows, 1 << 20) <= rows
        assert parts_of_rows(rows, 100) == 1
