"""Opstage against its peers, workload by workload: whole training steps, each side alone in its own process, in turn.

Every process starts with the OPENBLAS_*, MKL_* and OMP_* variables cleared, because such a variable can pin a library
to an older core or another number of threads. Each side of a workload has a folder of its own for whatever it compiles.
A first process finds it empty and does one step: the cold first step. The later ones find it filled.
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
from benchmarks.workloads import WORKLOADS

PINNING = ("OPENBLAS_", "MKL_", "OMP_")
CACHES = ("NUMBA_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "JAX_COMPILATION_CACHE_DIR")
KEEP_ALL = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
LIMIT_SECONDS = 240

Environment = Mapping[str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workloads", type=names_of(WORKLOADS), default=list(WORKLOADS), metavar="A,B")
    parser.add_argument("--sides", type=names_of(report.SIDES), default=list(report.SIDES), metavar="A,B")
    parser.add_argument("--rounds", type=positive(int), default=3, metavar="N", help="processes of each side (3)")
    parser.add_argument("--seconds", type=positive(float), default=2.0, metavar="S", help="of steps in each (2)")
    parser.add_argument("--no-cold", action="store_true", help="leave out the first steps with empty caches")
    parser.add_argument("--keep", action="store_true", help="keep the record of a part, too; of the whole it is kept")


def main(given: argparse.Namespace) -> None:
    cleared = sorted(name for name in os.environ if name.startswith(PINNING))
    environment = {name: value for name, value in os.environ.items() if name not in cleared}
    print(f"cleared from the environment: {', '.join(cleared) or 'nothing'}")
    record: dict[str, Any] = {
        "machine": machine(),
        "rounds": given.rounds,
        "seconds_per_round": given.seconds,
        "workloads": {},
    }
    print(report.heading(given.sides))
    for name in given.workloads:
        entry = {"flops": WORKLOADS[name].flops(), **_measure(name, given, environment)}
        record["workloads"][name] = entry
        print(report.line(name, entry, given.sides), flush=True)
    print()
    print("\n".join(report.summary(record)))
    if given.keep or (set(given.workloads) == set(WORKLOADS) and set(given.sides) == set(report.SIDES)):
        keep(record)


def keep(record: Mapping[str, Any], folder: Path = report.RESULTS) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "cpu.json").write_text(json.dumps(record, indent=1) + "\n")
    (folder / "cpu.svg").write_text(plot(record))
    print(f"kept in {folder}: cpu.json and cpu.svg; python -m benchmarks.page puts the tables into the guide")


def _measure(name: str, given: argparse.Namespace, environment: Environment) -> dict[str, Any]:
    """A summary per side; a side that failed once is not tried again."""
    with tempfile.TemporaryDirectory() as folder:
        places = {side: {**environment, **KEEP_ALL, **_caches(Path(folder) / side)} for side in given.sides}
        cold = {side: None if given.no_cold else _run(side, name, 0.0, places[side]) for side in given.sides}
        runs: dict[str, list[Any]] = {side: [] for side in given.sides if given.no_cold or cold[side] is not None}
        for _ in range(given.rounds):
            for side, done in runs.items():
                if not done or done[-1] is not None:
                    done.append(_run(side, name, given.seconds, places[side]))
    return {side: summarise(cold[side], runs.get(side, [])) for side in given.sides}


def _caches(folder: Path) -> dict[str, str]:
    found = {variable: folder / variable.lower() for variable in CACHES}
    for path in found.values():
        path.mkdir(parents=True)
    return {variable: str(path) for variable, path in found.items()}


def _run(side: str, name: str, seconds: float, environment: Environment) -> Any:
    command = [sys.executable, "-m", "benchmarks.run_side", side, name, str(seconds), str(time.time())]
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
