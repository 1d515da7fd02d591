"""Compiled steps beside processes that keep every core busy: the median and the 95th percentile of a step.

Each side is a process of its own: on one thread and on all of them, while the machine is quiet and while there is one
process to each core that never rests, half of them in Python and half in NumPy; these end with the measurement, also
where it is interrupted or killed. The sides take turns, so many rounds of so many seconds; of the rounds the best one
counts, for others may be at work besides. Ratios are to the quiet median on one thread: what a program pays at most for
having asked for threads that it does not get. Next to a busy process on its core a thread has half of that core, so a
ratio of 2 is what a fair system gives one thread; and where a step is shorter than the time for which the system lets a
thread run, a few milliseconds, some steps are longer by the time for which it lets the other run. That one thread pays
as well: the last column, over one thread beside the same processes, is what the other threads do to it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.against_peers import PINNING, machine
from benchmarks.choices import names_of, positive
from benchmarks.report import RESULTS

PROGRAMS = ("mlp-s", "cnn", "gpt", "softmax")
SIDES = {"quiet, one thread": (1, False), "quiet": (0, False), "busy, one thread": (1, True), "busy": (0, True)}
"""How many threads, 0 for as many as there are cores, and whether the cores are busy."""
LIMIT = 2.5  # times the quiet median on one thread

_ROOT = Path(__file__).parents[1]
_LEAST_STEPS = 20
_SOFTMAX = (2048, 4096)
_WORK = {"Python": "sum(range(100_000))", "NumPy": "np.sin(x, out=x)"}
_BUSY = """
import os
import numpy as np
x = np.ones(100_000)
print(flush=True)
while os.getppid() == {parent}:
    {work}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--programs", type=names_of(PROGRAMS), default=list(PROGRAMS), metavar="A,B")
    parser.add_argument("--rounds", type=positive(int), default=3, metavar="N", help="processes of each side (3)")
    parser.add_argument("--seconds", type=positive(float), default=3.0, metavar="S", help="of steps in each (3)")


def main(given: argparse.Namespace) -> None:
    print(
        f"{'median / 95th':12}"
        + "".join(f"{side:>24}" for side in SIDES)
        + f"{'busy / quiet one':>24}{'busy / busy one':>24}"
    )
    found: dict[str, dict[str, Any]] = {}
    for name in given.programs:
        runs: dict[str, list[Any]] = {side: [] for side in SIDES}
        for _ in range(given.rounds):
            for side, (threads, are_busy) in SIDES.items():
                with busy(os.cpu_count() or 1) if are_busy else ExitStack():
                    runs[side].append(_run(name, given.seconds, threads))
        found[name] = summarise(runs)
        print(line(name, found[name]), flush=True)
    most = max(ratio for figures in found.values() for ratio in ratios(figures))
    print(f"{'within' if most <= LIMIT else 'OVER'} the limit of {LIMIT}: {most:.2f} at most")
    if given.programs == list(PROGRAMS):
        RESULTS.mkdir(exist_ok=True)
        whole = {"machine": machine(), "rounds": given.rounds, "programs": found}
        (RESULTS / "steady.json").write_text(json.dumps(whole, indent=1) + "\n")


def summarise(runs: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """Of each side the round of the best median."""
    return {side: dict(min(rounds, key=lambda run: run["median_ms"])) for side, rounds in runs.items()}


def ratios(figures: Mapping[str, Mapping[str, float]], to: str = "quiet, one thread") -> tuple[float, float]:
    """The median and the 95th percentile with busy cores, over the quiet median on one thread or a busy side's own."""
    ours, other = figures["busy"], figures[to]
    percentile = other["median_ms" if to == "quiet, one thread" else "percentile_95_ms"]
    return ours["median_ms"] / other["median_ms"], ours["percentile_95_ms"] / percentile


def line(name: str, figures: Mapping[str, Mapping[str, float]]) -> str:
    """A row of the table."""
    cells = [f"{run['median_ms']:.2f} / {run['percentile_95_ms']:.2f} ms" for run in figures.values()]
    for to in ("quiet, one thread", "busy, one thread"):
        cells.append(" / ".join(f"{ratio:.2f}" for ratio in ratios(figures, to)))
    return f"{name:12}" + "".join(f"{cell:>24}" for cell in cells)


# What keeps the cores busy -------------------------------------------------------------------------------------------


@contextmanager
def busy(count: int) -> Iterator[list[subprocess.Popen[str]]]:
    """So many processes that never rest. They end with the block, and by themselves where this process is gone."""
    with ExitStack() as stack:
        started = []
        for i in range(count):
            text = _BUSY.format(parent=os.getpid(), work=list(_WORK.values())[i % len(_WORK)])
            command = [sys.executable, "-c", text]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=_environment())
            stack.callback(_end, process)
            started.append(process)
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()
        yield started


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


# One side ------------------------------------------------------------------------------------------------------------


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(PINNING)}


def _run(name: str, seconds: float, threads: int) -> Any:
    environment = _environment() | ({"NUMBA_NUM_THREADS": str(threads)} if threads else {})
    command = [sys.executable, "-m", "benchmarks.steady", name, str(seconds)]
    done = subprocess.run(command, env=environment, cwd=_ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def measure(name: str, seconds: float) -> dict[str, float]:
    """The figures of the steps of so many seconds."""
    one = program(name)
    for _ in range(_LEAST_STEPS):
        one()
    taken: list[float] = []
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop or len(taken) < _LEAST_STEPS:
        begin = time.perf_counter()
        one()
        taken.append(time.perf_counter() - begin)
    return {
        "median_ms": 1e3 * statistics.median(taken),
        "percentile_95_ms": 1e3 * statistics.quantiles(taken, n=20)[-1],
        "best_ms": 1e3 * min(taken),
        "steps": len(taken),
    }


def program(name: str) -> Callable[[], Any]:
    """A step of a workload, or one kernel on a large array."""
    import numpy as np

    import opstage
    from benchmarks import programs
    from benchmarks.workloads import WORKLOADS

    options = opstage.Options(backend="compiled")
    if name in WORKLOADS:
        return programs.step(WORKLOADS[name], options)
    x = np.random.default_rng(0).standard_normal(_SOFTMAX).astype(np.float32)
    softmax: Any = opstage.compile(_softmax, opstage.Spec(_SOFTMAX), options=options)
    return lambda: softmax.forward(x)


def _softmax(ops: Any, x: Any) -> Any:
    return ops.softmax(x, axis=-1)


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], float(sys.argv[2]))))
