"""What the eager tape costs in Python, beyond NumPy's own time: a chain of small ops, forward and backward.

The chain is relu, tanh and mul by a parameter in turn, on a vector of 4. The floor is the same arithmetic written in
NumPy by hand, its derivatives included. Both sides run in alternation in one process; medians are compared.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from opstage.interpreters.eager_cpu import NumpyOps
from opstage.options import Options
from opstage.transforms.tape import Tape

OPS = 3000
ROUNDS = 40
LIMIT_US = 3.0  # per op and pass


def chain(ops: Any, weight: Any, x: Any) -> Any:
    for _ in range(OPS // 3):
        x = ops.mul(ops.tanh(ops.relu(x)), weight)
    return x


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It has none."""


def main(given: argparse.Namespace) -> None:
    ops = NumpyOps(Options())
    rng = np.random.default_rng(0)
    x, weight = (rng.standard_normal(4).astype(np.float32) for _ in range(2))
    seed = np.ones(4, np.float32)

    def numpy_forward() -> list[tuple[Any, Any]]:
        y, kept = x, []
        for _ in range(OPS // 3):
            a = np.maximum(y, 0)
            b = np.tanh(a)
            y = np.multiply(b, weight)
            kept.append((a, b))
        return kept

    def numpy_both() -> None:
        kept = numpy_forward()
        g, gw = seed, None
        for a, b in reversed(kept):
            step = np.multiply(g, b)
            gw = step if gw is None else np.add(gw, step)
            g = np.multiply(g, weight)
            g = np.multiply(g, np.subtract(1, np.multiply(b, b)))
            g = np.where(a <= 0, 0, g)

    def tape_forward() -> tuple[Tape[Any], Any, Any, Any]:
        tape: Tape[Any] = Tape(ops)
        w, v = tape.leaf(weight), tape.leaf(x)
        return tape, w, v, chain(tape, w, v)

    def tape_both() -> None:
        tape, w, v, out = tape_forward()
        tape.pull([out], [seed], [w, v], keep=False)

    times = alternate(
        {"NumPy forward": numpy_forward, "tape forward": tape_forward, "NumPy both": numpy_both, "tape both": tape_both}
    )
    forward = times["tape forward"] - times["NumPy forward"]
    backward = (times["tape both"] - times["tape forward"]) - (times["NumPy both"] - times["NumPy forward"])
    print(f"tape overhead, chain of {OPS} ops (relu, tanh, mul) on a vector of 4, median of {ROUNDS} rounds")
    for name, seconds in times.items():
        print(f"  {name:<14} {1e6 * seconds / OPS:6.2f} µs per op")
    for name, seconds in (("forward", forward), ("backward", backward)):
        per_op = 1e6 * seconds / OPS
        verdict = "within" if per_op <= LIMIT_US else "OVER"
        print(f"  {name:<14} {per_op:6.2f} µs per op beyond NumPy ({verdict} the limit of {LIMIT_US} µs)")


def alternate(sides: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Median seconds of each side, all sides taking turns."""
    for side in sides.values():
        side()
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(ROUNDS):
        for name, side in sides.items():
            start = time.perf_counter()
            side()
            taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}
