"""Strong and weak scaling on several processes beside PyTorch's DistributedDataParallel over gloo, and what that costs.

Each process computes on one thread. Strong: the batch of one process on all of them; weak: as many rows on each as one
has alone. Efficiency is against the same side on one process. Beside that: sums in our fixed order and MPI_Allreduce,
whether the bytes that are sent are those that were predicted, and the CPU time of a compiled rank against that of its
own rows alone. It needs the extra `mpi`; without torch its columns stay empty. One machine is no cluster: for more
ranks than it has cores there is `opstage check --cluster`, which is a model.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.against_peers import PINNING, machine
from benchmarks.choices import names_of, positive
from benchmarks.report import RESULTS
from benchmarks.workloads import ON_GPU

SIDES = ("eager", "compiled", "torch")
WORKLOADS = ("mlp-s", "mlp-l", "gpt")
LIMIT = 1.2
"""Times the CPU time of its rows alone that a compiled rank may take."""

_ROOT = Path(__file__).parents[1]
_PATIENCE = 600


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workloads", type=names_of(WORKLOADS), default=list(WORKLOADS), metavar="A,B")
    parser.add_argument("--sides", type=names_of(SIDES), default=list(SIDES), metavar="A,B")
    parser.add_argument("--processes", type=positive(int), default=2, metavar="N", help="how many (2)")
    parser.add_argument("--steps", type=positive(int), default=50, metavar="N", help="in each run (50)")
    parser.add_argument(
        "--rounds", type=positive(int), default=3, metavar="N", help="runs of each; the best counts (3)"
    )


def main(given: argparse.Namespace) -> None:
    sides = [side for side in given.sides if side != "torch" or find_spec("torch")]
    if sides != given.sides:
        print("torch is not installed: its columns stay empty")
    count, found = given.processes, []
    for name in given.workloads:
        rows = ON_GPU[name].batch
        runs: dict[str, dict[str, Any]] = {side: {} for side in sides}
        for _ in range(given.rounds):
            for side in sides:  # in turns, so that what else runs meets all
                wanted = {"alone": (rows, 1), "strong": (rows, count), "weak": (rows * count, count)}
                if side == "compiled":
                    wanted["own rows"] = (rows // count, 1)
                for what, (batch, processes) in wanted.items():
                    figures = run(side, name, batch, processes, given.steps)
                    runs[side][what] = better(runs[side].get(what), figures)
        found.append({"workload": name, "sides": runs})
        print("\n".join(lines(name, runs, count)), flush=True)
    (sums,) = _started("eager", count, "sums", "-", 0, count, given.steps)[:1]
    for each in sums["sums"]:
        print(f"a sum of {each['bytes']:>12,} bytes: ours {each['ours']:8.3f} ms, MPI_Allreduce {each['bare']:8.3f} ms")
    if (given.workloads, given.sides) == (list(WORKLOADS), list(SIDES)) and sides == given.sides:
        RESULTS.mkdir(exist_ok=True)
        record = {"machine": machine(), "processes": count, "workloads": found, "sums": sums["sums"]}
        (RESULTS / "scaling.json").write_text(json.dumps(record, indent=1) + "\n")


def lines(name: str, runs: Mapping[str, Any], count: int) -> list[str]:
    """The table of a workload."""
    heads = (f"{'alone':>12}", f"{f'strong on {count}':>24}", f"{f'weak on {count}':>24}", f"{'CPU of a rank':>20}")
    made = [f"{name:10}{''.join(heads)}  bytes of a step"]
    for side, each in runs.items():
        alone, strong, weak = (each[what]["median_ms"] for what in ("alone", "strong", "weak"))
        cpu, sent = "", ""
        if "own rows" in each:
            ratio = each["strong"]["cpu_ms"] / each["own rows"]["cpu_ms"]
            cpu = f"{ratio:.2f} of its rows{'' if ratio <= LIMIT else ' OVER'}"
        if side != "torch":
            equal = each["strong"]["sent"] == each["strong"]["predicted"]
            sent = f"{each['strong']['sent']:,.0f}, {'as predicted' if equal else 'NOT as predicted'}"
        made.append(
            f"  {side:8}{alone:>9.2f} ms{f'{strong:.2f} ms, {alone / strong / count:.0%}':>24}"
            f"{f'{weak:.2f} ms, {alone / weak:.0%}':>24}{cpu:>20}  {sent}"
        )
    return made


def better(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of two runs the one of the shorter median, with the less CPU time of both."""
    if before is None:
        return now
    best = min(before, now, key=lambda figures: float(figures["median_ms"]))
    return {**best, "cpu_ms": min(before["cpu_ms"], now["cpu_ms"])}


def run(side: str, name: str, batch: int, processes: int, steps: int) -> dict[str, Any]:
    """The figures of one run: of its slowest process, and CPU time and bytes of a process in the mean."""
    each = _started(side, processes, side, name, batch, processes, steps)
    assert len(each) == processes, each
    slowest = max(each, key=lambda figures: float(figures["median_ms"]))
    mean = {key: sum(figures[key] for figures in each) / processes for key in ("cpu_ms", "sent")}
    return {**slowest, **mean}


def _started(side: str, processes: int, *words: Any) -> list[dict[str, Any]]:
    """The lines of all processes of a side."""
    command = [sys.executable, "-m", "benchmarks.scaling_side", *map(str, words)]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(PINNING)},
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    if side != "torch":
        mpiexec = [str(Path(sysconfig.get_path("scripts")) / "mpiexec"), "--oversubscribe", "--bind-to", "none"]
        return _ended([_start([*mpiexec, "-n", str(processes), *command] if processes > 1 else command, environment)])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(processes)}
    return _ended([_start(command, {**environment, **meeting, "RANK": str(rank)}) for rank in range(processes)])


def _start(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, env=environment, cwd=_ROOT, stdout=subprocess.PIPE, text=True)


def _ended(started: Sequence[subprocess.Popen[str]]) -> list[dict[str, Any]]:
    try:
        said = [process.communicate(timeout=_PATIENCE)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    failed = [process.returncode for process in started if process.returncode]
    if failed:
        raise SystemExit(f"a process of the measurement has ended with exit code {failed[0]}")
    return [json.loads(line) for text in said for line in text.splitlines() if line.startswith("{")]
