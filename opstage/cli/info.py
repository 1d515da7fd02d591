"""`opstage info`: what Opstage runs on here. `opstage report RUN …`: compare runs."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click

from .. import __version__
from ..files import write_file
from ..interpreters.registry import backends
from ..ops.errors import printable
from ..pages import aligned
from ..runs.directory import THREADS
from ..runs.run_comparison import Cells, compare_runs, comparison_html
from ..threads import usable_cores
from .commands import PATH, Command, quiet_option, tell

PACKAGES = ("numpy", "numba", "llvmlite", "optree", "rich", "click")
CUDA_PACKAGES = ("numba-cuda", "cuda-core", "cuda-bindings", "cuda-toolkit", "nvidia-nvjitlink")
CUDA_LIBRARIES = ("nvJitLink", "nvvm", "cublasLt")


@click.command(cls=Command)
def info() -> None:
    """Print versions, BLAS and its core type, threads, and GPUs."""
    click.echo(f"opstage {__version__} on Python {platform.python_version()}, {platform.platform()}")
    for name in PACKAGES:
        click.echo(f"  {name:<14} {_version(name)}")
    click.echo(f"interpreters     {', '.join(backends())}")
    click.echo(f"processor        {_processor()}, {os.cpu_count()} logical cores, {usable_cores()} of them usable")
    for line in blas_lines():
        click.echo(line)
    pinned = {name: os.environ[name] for name in THREADS if name in os.environ}
    click.echo(f"environment      {', '.join(f'{k}={v}' for k, v in pinned.items()) or 'pins nothing'}")
    for line in cuda_lines():
        click.echo(line)


def blas_lines() -> list[str]:
    """Describe the BLAS that NumPy loaded, its threads and core type; warn if the environment pins the core type."""
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


def cuda_lines() -> list[str]:
    """Describe the GPUs and driver, and the packages and libraries that kernels need."""
    from ..compiler.gpu.machine import look

    machine = look()
    if machine.version is None:
        lines = ["GPU              none (no NVIDIA driver: libcuda was not found)"]
    else:
        lines = [f"NVIDIA driver    runs CUDA {machine.version[0]}.{machine.version[1]} and older"]
        for number, gpu in enumerate(machine.gpus):
            memory = f"{gpu.memory / 2**30:.1f} GiB"
            which = f"cuda:{number}" if len(machine.gpus) > 1 else "GPU"
            lines.append(f"{which:<16} {gpu.name}, compute capability {gpu.cc[0]}.{gpu.cc[1]}, {memory}")
        if not machine.gpus:
            lines.append("GPU              none (the NVIDIA driver is there but reports no device)")
    lines.append("for CUDA")
    lines += [f"  {name:<16} {_version(name)}" for name in CUDA_PACKAGES]
    return lines + [f"  {name:<16} {_library(name)}" for name in CUDA_LIBRARIES]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _library(name: str) -> str:
    """Return the location of an NVIDIA library."""
    try:
        from cuda import pathfinder

        return str(pathfinder.load_nvidia_dynamic_lib(name).abs_path)
    except Exception:  # the package that locates them may be missing too
        return "not found"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


# opstage report -------------------------------------------------------------------------------------------------------


@click.command(cls=Command)
@click.argument("runs", nargs=-1, required=True, type=PATH, metavar="RUN…")
@click.option(
    "-o",
    "--out",
    "--output",
    "out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write a page with the curves of all runs.",
)
@quiet_option
def report(runs: tuple[Path, ...], out: Path | None) -> None:
    """Compare RUNs: results, and settings, data and versions that differ.

    For one run, all data and versions are printed. A run that is still in progress, or was interrupted, is reported as
    it is. No code of a model runs.
    """
    compared = compare_runs(runs)
    tell(_text(compared.results))
    for rows in (compared.settings, compared.data):
        if len(rows) > 1:
            tell(f"\n{_text(rows)}")
    if compared.remark:
        tell(f"\n{compared.remark}")
    if out is not None:
        write_file(out, [comparison_html(compared).encode(errors="replace")])
        tell(f"\nwrote {out}")


def _text(rows: Sequence[Cells]) -> str:
    """Format the rows in columns, the first one as a heading."""
    return "\n".join(aligned([[printable(cell) for cell in row] for row in rows]))
