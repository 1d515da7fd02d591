"""`opstage info`: what Opstage runs on here."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import click

from .. import __version__
from ..interpreters.registry import backends

PACKAGES = ("numpy", "numba", "llvmlite", "optree", "rich", "click", "numba-cuda", "cuda-bindings")
PINNING = ("OPENBLAS_CORETYPE", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


@click.command()
def info() -> None:
    """Versions, BLAS and its core type, threads, and the GPU if there is one."""
    click.echo(f"opstage {__version__} on Python {platform.python_version()}, {platform.platform()}")
    for name in PACKAGES:
        try:
            click.echo(f"  {name:<14} {version(name)}")
        except PackageNotFoundError:
            click.echo(f"  {name:<14} not installed")
    click.echo(f"interpreters     {', '.join(backends())}")
    click.echo(f"processor        {_processor()}, {os.cpu_count()} logical cores")
    for line in blas_lines():
        click.echo(line)
    pinned = {name: os.environ[name] for name in PINNING if name in os.environ}
    click.echo(f"environment      {', '.join(f'{k}={v}' for k, v in pinned.items()) or 'pins nothing'}")
    click.echo(f"GPU              {_gpu()}")


def blas_lines() -> list[str]:
    """The BLAS that NumPy loaded, its threads and core type; a warning where the environment pins the core type."""
    import numpy as np
    from threadpoolctl import threadpool_info

    np.dot(np.ones(2), np.ones(2))
    lines = []
    for library in threadpool_info():
        if library["user_api"] != "blas":
            continue
        core = library.get("architecture", "unknown")
        lines.append(
            f"BLAS             {library['internal_api']} {library.get('version')}, core type {core}, "
            f"{library['num_threads']} threads"
        )
        pinned = os.environ.get("OPENBLAS_CORETYPE")
        if library["internal_api"] == "openblas" and pinned:
            lines.append(
                f"  warning: OPENBLAS_CORETYPE={pinned} in the environment pins the core type; "
                "unset it, and OpenBLAS chooses the kernels for this processor (often twice as fast)"
            )
    return lines or ["BLAS             none found"]


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _gpu() -> str:
    import ctypes

    try:
        cuda: Any = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "none (no NVIDIA driver: libcuda.so.1 was not found)"
    count = ctypes.c_int()
    if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return "none (the NVIDIA driver is there but reports no device)"
    name = ctypes.create_string_buffer(128)
    cuda.cuDeviceGetName(name, 128, 0)
    return f"{name.value.decode()}" + (f" and {count.value - 1} more" if count.value > 1 else "")
