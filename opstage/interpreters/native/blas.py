"""The BLAS that NumPy came with: where its functions stand in memory, and how many threads it may use.

Kernels call it by address. NumPy's wheels bring OpenBLAS under names of their own, with 64-bit integers; other builds
have the plain names with 32-bit ones.
"""

from __future__ import annotations

import ctypes
import glob
import os
from functools import cache
from typing import NamedTuple

import numpy as np


class Blas(NamedTuple):
    """Addresses of C functions.

    sgemm, dgemm   cblas_?gemm
    set_threads    sets the number of threads that a call may use; 0 when it is not known how
    get_threads    tells it
    wide           whether sizes are 64-bit integers
    """

    sgemm: int
    dgemm: int
    set_threads: int
    get_threads: int
    wide: bool


_NAMES = (
    # gemm, set, get, wide
    ("scipy_cblas_{}gemm64_", "scipy_openblas_set_num_threads64_", "scipy_openblas_get_num_threads64_", True),
    ("cblas_{}gemm64_", "openblas_set_num_threads64_", "openblas_get_num_threads64_", True),
    ("scipy_cblas_{}gemm", "scipy_openblas_set_num_threads", "scipy_openblas_get_num_threads", False),
    ("cblas_{}gemm", "openblas_set_num_threads", "openblas_get_num_threads", False),
)


@cache
def find_blas() -> Blas | None:
    """NumPy's BLAS; None if it has no OpenBLAS that can be called from outside."""
    for library in _libraries():
        for gemm, setter, getter, wide in _NAMES:
            try:
                functions = [library[name] for name in (gemm.format("s"), gemm.format("d"), setter, getter)]
            except AttributeError:
                continue
            sgemm, dgemm, set_threads, get_threads = (
                ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions
            )
            return Blas(sgemm, dgemm, set_threads, get_threads, wide)
    return None


def _libraries() -> list[ctypes.CDLL]:
    """Libraries that NumPy has loaded already, its own first."""
    package = os.path.dirname(np.__file__)
    bundled = glob.glob(os.path.join(package, os.pardir, "numpy.libs", "*openblas*"))
    bundled += glob.glob(os.path.join(package, ".dylibs", "*openblas*"))
    libraries = []
    for path in [*bundled, *_mapped()]:
        try:
            libraries.append(ctypes.CDLL(path))
        except OSError:
            continue
    return libraries


def _mapped() -> list[str]:
    """Files of OpenBLAS that this process has mapped, on systems that can tell."""
    try:
        with open("/proc/self/maps", encoding="utf-8") as maps:
            paths = {line.split(maxsplit=5)[-1].strip() for line in maps if "openblas" in line}
    except OSError:
        return []
    return sorted(path for path in paths if path.startswith("/"))
