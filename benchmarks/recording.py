"""What recording costs as programs grow: a chain of n ops recorded, differentiated, compiled and run.

The chain is relu, tanh and mul by a parameter in turn, on a vector of 4. Every figure should be linear in n. `record`
is the best of a few, its memory the peak of what Python allocates meanwhile; `differentiate` is what the gradient adds
to it; `compile` is what the first call of the gradient takes beyond these two; `run` is the median of later calls.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import opstage
from benchmarks.against_peers import machine
from benchmarks.choices import positive
from benchmarks.programs import chain
from benchmarks.report import RESULTS
from opstage import Options, Spec

LENGTHS = (1000, 2000, 4000, 8000, 16000)
LIMIT_MS = 100.0  # of recording the longest chain
LIMIT_BYTES = 100e6

_ROUNDS = 5
_FIGURES = ("record_ms", "differentiate_ms", "compile_ms", "run_ms", "record_bytes")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--longest", type=positive(int), default=LENGTHS[-1], metavar="N", help="leave longer ones out")
    parser.add_argument("--no-compile", action="store_true", help="record and differentiate alone")


def main(given: argparse.Namespace) -> None:
    lengths = [n for n in LENGTHS if n <= given.longest] or [given.longest]
    print("a chain of n ops on a vector of 4")
    print(f"{'n':>6}{'record':>12}{'memory':>12}{'differentiate':>16}{'compile':>12}{'run':>12}")
    record(chain(9))  # what is imported late
    record(differentiated(chain(9)))
    rows = []
    for n in lengths:
        rows.append(measure(n, compiled=not given.no_compile))
        print(line(rows[-1]), flush=True)
    grown = {name: growth(rows, name) for name in _FIGURES}
    if len(rows) > 1:
        print("grows as n to the power of: " + ", ".join(f"{k} {v:.2f}" for k, v in grown.items() if v is not None))
    last = rows[-1]
    if last["n"] == LENGTHS[-1]:
        within = last["record_ms"] <= LIMIT_MS and last["record_bytes"] <= LIMIT_BYTES
        print(f"{'within' if within else 'OVER'} the limits of {LIMIT_MS:.0f} ms and {LIMIT_BYTES / 1e6:.0f} MB")
        if not given.no_compile:
            RESULTS.mkdir(exist_ok=True)
            whole = {"machine": machine(), "chains": rows, "powers": grown}
            (RESULTS / "recording.json").write_text(json.dumps(whole, indent=1) + "\n")


def measure(n: int, *, compiled: bool) -> dict[str, Any]:
    """The figures of one length."""
    program = chain(n)
    recorded = best(lambda: record(program))
    both = best(lambda: record(differentiated(program)))
    row: dict[str, Any] = {
        "n": n,
        "record_ms": 1e3 * recorded,
        "record_bytes": allocated(lambda: record(program)),
        "differentiate_ms": 1e3 * (both - recorded),
        "compile_ms": None,
        "run_ms": None,
    }
    if compiled:
        weight, x, options = np.full(4, 0.9, np.float32), np.ones(4, np.float32), Options(backend="compiled")

        def gradient() -> Any:
            return opstage.value_and_grad(program, weight, x, wrt=(0, 1), options=options)

        row["compile_ms"] = 1e3 * (timed(gradient) - both)
        row["run_ms"] = 1e3 * statistics.median(timed(gradient) for _ in range(4 * _ROUNDS))
    return row


def record(program: Callable[..., Any]) -> Any:
    """The graph of a program of a parameter and a vector of 4."""
    return opstage.record(program, Spec("4"), Spec("4"))


def differentiated(program: Callable[..., Any]) -> Callable[..., Any]:
    """The gradients of a program."""
    return lambda ops, weight, x: opstage.transform.grad(ops, program, weight, x)


def timed(call: Callable[[], Any]) -> float:
    """Seconds."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def best(call: Callable[[], Any]) -> float:
    """The fewest seconds of a few calls, each of which starts without garbage."""
    taken = []
    for _ in range(_ROUNDS):
        gc.collect()
        taken.append(timed(call))
    return min(taken)


def allocated(call: Callable[[], Any]) -> int:
    """The most bytes that Python had allocated at one time during the call."""
    gc.collect()
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def growth(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """The power of n that fits best; None of fewer than two figures."""
    points = [(math.log(row["n"]), math.log(row[name])) for row in rows if row[name] and row[name] > 0]
    if len(points) < 2:
        return None
    across, up = zip(*points)
    return statistics.linear_regression(across, up).slope


def line(row: Mapping[str, Any]) -> str:
    """A row of the table."""
    times = [None if row[name] is None else f"{row[name]:.2f} ms" for name in _FIGURES[:4]]
    recorded, differentiate, compiled, run = (text or "-" for text in times)
    memory = f"{row['record_bytes'] / 1e6:.1f} MB"
    return f"{row['n']:>6}{recorded:>12}{memory:>12}{differentiate:>16}{compiled:>12}{run:>12}"
