"""Opstage against its peers, workload by workload: whole training steps, each side alone in its own process, in turn.

Every process starts with the OPENBLAS_*, MKL_* and OMP_* variables cleared, because such a variable can pin a library
to an older core or another number of threads. Each side of a workload has a folder of its own for whatever it compiles.
A first process finds it empty and does one step: the cold first step. The later ones find it filled.

With --device cuda all sides use the first GPU, with products of one precision; their batch is the host's and goes there
in every step, and a step is done when the GPU is.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.choices import names_of, positive
from benchmarks.plot import plot
from benchmarks.workloads import ON_GPU, WORKLOADS

PINNING = ("OPENBLAS_", "MKL_", "OMP_")
CACHES = ("NUMBA_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "JAX_COMPILATION_CACHE_DIR")
KEEP_ALL = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
PLATFORMS = {"cpu": "cpu", "cuda": "cuda"}
"""Devices, and what JAX calls them."""
LIMIT_SECONDS = 240

Environment = Mapping[str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=tuple(PLATFORMS), default="cpu")
    parser.add_argument("--precision", choices=("fp32", "tf32"), default="fp32", help="of products on a GPU (fp32)")
    parser.add_argument("--workloads", type=names_of(ON_GPU), metavar="A,B", help="all but gpt2-s, on a GPU all")
    parser.add_argument("--sides", type=names_of(report.SIDES), default=list(report.SIDES), metavar="A,B")
    parser.add_argument("--rounds", type=positive(int), default=3, metavar="N", help="processes of each side (3)")
    parser.add_argument("--seconds", type=positive(float), default=2.0, metavar="S", help="of steps in each (2)")
    parser.add_argument("--no-cold", action="store_true", help="leave out the first steps with empty caches")
    parser.add_argument("--keep", action="store_true", help="keep the record of a part, too; of the whole it is kept")


def workloads_of(given: argparse.Namespace) -> list[str]:
    """Those that were named, or all of the device."""
    return given.workloads or list(ON_GPU if given.device == "cuda" else WORKLOADS)


def main(given: argparse.Namespace) -> None:
    if given.device == "cpu" and given.precision != "fp32":
        raise SystemExit(f"--precision {given.precision} needs --device cuda")
    gpu = gpu_name() if given.device == "cuda" else None
    names = workloads_of(given)
    cleared = sorted(name for name in os.environ if name.startswith(PINNING))
    environment = {name: value for name, value in os.environ.items() if name not in cleared}
    environment |= {"JAX_PLATFORMS": PLATFORMS[given.device], "JAX_TRACEBACK_FILTERING": "off"}
    print(f"cleared from the environment: {', '.join(cleared) or 'nothing'}")
    record: dict[str, Any] = {
        "machine": machine(),
        "rounds": given.rounds,
        "seconds_per_round": given.seconds,
        "workloads": {},
    }
    if gpu is not None:
        record |= {"gpu": gpu, "precision": given.precision}
    print(report.heading(given.sides))
    for name in names:
        entry = {"flops": ON_GPU[name].flops(), **_measure(name, given, environment)}
        record["workloads"][name] = entry
        print(report.line(name, entry, given.sides), flush=True)
    print()
    print("\n".join(report.summary(record)))
    if given.keep or (set(names) >= set(WORKLOADS) and set(given.sides) == set(report.SIDES)):
        keep(record)


def gpu_name() -> str:
    """Of the first GPU. Ends the program where there is none that Opstage can use."""
    from opstage import UsageError
    from opstage.compiler.gpu.machine import look
    from opstage.compiler.gpu.probe import require_gpu

    try:
        require_gpu(look())
    except UsageError as error:
        raise SystemExit(str(error)) from None
    return look().gpus[0].name


def keep(record: Mapping[str, Any], folder: Path = report.RESULTS) -> None:
    """On a CPU as the one record that the guide shows, on a GPU under its name, with a page; there workloads that were
    measured on the same machine before stay."""
    folder.mkdir(exist_ok=True)
    stem = "cpu" if "gpu" not in record else f"{record['gpu']}-{record['precision']}".lower().replace(" ", "-")
    before = folder / f"{stem}.json"
    if "gpu" in record and before.is_file():
        old = json.loads(before.read_text())
        if {**old, "workloads": 0} == {**record, "workloads": 0}:
            record = {**record, "workloads": {**old["workloads"], **record["workloads"]}}
    (folder / f"{stem}.json").write_text(json.dumps(record, indent=1) + "\n")
    (folder / f"{stem}.svg").write_text(plot(record))
    if "gpu" in record:
        title = f"# Training steps on {record['gpu']}, {record['precision']}"
        (folder / f"{stem}.md").write_text(f"{title}\n\n{report.markdown(record)}\n")
        print(f"kept in {folder}: {stem}.json, {stem}.svg and {stem}.md")
    else:
        print(f"kept in {folder}: cpu.json and cpu.svg; python -m benchmarks.page puts the tables into the guide")


def _measure(name: str, given: argparse.Namespace, environment: Environment) -> dict[str, Any]:
    """A summary per side; a side that failed once is not tried again."""
    with tempfile.TemporaryDirectory() as folder:
        places = {side: {**environment, **KEEP_ALL, **_caches(Path(folder) / side)} for side in given.sides}
        where = given.device, given.precision
        cold = {side: None if given.no_cold else _run(side, name, 0.0, where, places[side]) for side in given.sides}
        runs: dict[str, list[Any]] = {side: [] for side in given.sides if given.no_cold or cold[side] is not None}
        for _ in range(given.rounds):
            for side, done in runs.items():
                if not done or done[-1] is not None:
                    done.append(_run(side, name, given.seconds, where, places[side]))
    return {side: summarise(cold[side], runs.get(side, [])) for side in given.sides}


def _caches(folder: Path) -> dict[str, str]:
    found = {variable: folder / variable.lower() for variable in CACHES}
    for path in found.values():
        path.mkdir(parents=True)
    return {variable: str(path) for variable, path in found.items()}


def _run(side: str, name: str, seconds: float, where: tuple[str, str], environment: Environment) -> Any:
    command = [sys.executable, "-m", "benchmarks.run_side", side, name, str(seconds), str(time.time()), *where]
    root = Path(__file__).parents[1]
    try:
        done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        print(f"  {side} on {name}: not done after {LIMIT_SECONDS} s")
        return None
    if done.returncode != 0:
        print(f"  {side} on {name}: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'failed'}")
        return None
    return json.loads(done.stdout.strip().splitlines()[-1])


def summarise(cold: Any, runs: Sequence[Any]) -> dict[str, Any] | None:
    """The figures of a side from its process with empty caches and from its rounds; None if no round ended."""
    runs = [run for run in runs if run is not None]
    if not runs:
        return None
    medians = [run["median_ms"] for run in runs]
    return {
        "median_ms": statistics.median(medians),
        "medians_ms": medians,
        "best_ms": min(run["best_ms"] for run in runs),
        "cold_first_step_s": None if cold is None else cold["first_step_s"],
        "warm_first_step_s": statistics.median(run["first_step_s"] for run in runs),
        "peak_bytes": max(run["peak_bytes"] for run in runs),
        "working_bytes": max(run["peak_bytes"] - run["imported_bytes"] for run in runs),
        "cold_working_bytes": None if cold is None else cold["peak_bytes"] - cold["imported_bytes"],
        "losses": runs[0]["losses"],
    }


def machine() -> dict[str, Any]:
    """What a figure depends on besides the program."""
    packages: dict[str, str | None] = {}
    for name in ("numpy", "numba", "torch", "jax"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = None
    return {"processor": _processor(), "cores": os.cpu_count(), "packages": packages}


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
