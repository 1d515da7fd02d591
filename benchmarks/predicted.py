"""The predicted time of training steps beside the time that they take, for the shipped models, eager and compiled.

Each backend is measured in a process of its own, in which calibrations of the machine and the steps take turns; of
every figure the best of all rounds counts. `kernels` are the sums of kernels that were timed one by one, which on a
busy machine are surer than whole steps: a step of milliseconds is seldom left alone there. Ratios are predicted over
measured; the goal is 0.75 to 1.25.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.against_peers import PINNING, machine
from benchmarks.choices import names_of, positive
from benchmarks.report import RESULTS

if TYPE_CHECKING:
    from opstage.planning.rates import KernelPoint, Rates

BACKENDS = ("eager", "compiled")
SIZES: dict[str, dict[str, int]] = {
    "mlp": {"B": 64},
    "cnn": {"B": 64},
    "resnet": {"B": 64},
    "vit": {"B": 64},
    "lstm": {"B": 64},
    "unet": {"B": 64},
    "vae": {"B": 64},
    "pinn": {"B": 256},
    "gpt": {"B": 12, "T": 64},
}
GOAL = 0.25
_USUAL_CALLS, _USUAL_UPDATES = 50, 8  # in a small step, by which calibrations are compared


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", type=names_of(SIZES), default=list(SIZES), metavar="A,B")
    parser.add_argument("--backends", type=names_of(BACKENDS), default=list(BACKENDS), metavar="A,B")
    parser.add_argument("--rounds", type=positive(int), default=3, metavar="N", help="of calibrations and steps (3)")
    parser.add_argument("--threads", type=positive(int), metavar="N", help="threads of a step (all cores)")
    parser.add_argument("--kernels", action="store_true", help="name the kernels that are off by more than 25 %%")


def main(given: argparse.Namespace) -> None:
    print(f"{'':18}{'step ms':>10}{'predicted':>11}{'ratio':>7}{'kernels ms':>12}{'predicted':>11}{'ratio':>7}")
    rows = []
    for backend in given.backends:
        for row in _run(backend, given):
            rows.append(row)
            print(line(row), flush=True)
            for kernel in row["off"] if given.kernels else ():
                print(f"{'':20}{kernel['predicted_ms']:>9.3f}{kernel['measured_ms']:>10.3f}  {kernel['name'][:80]}")
    within = sum(abs(row["predicted_ms"] / row["measured_ms"] - 1) <= GOAL for row in rows)
    print(f"{within} of {len(rows)} steps are predicted within {GOAL:.0%}")
    if (given.models, given.backends) == (list(SIZES), list(BACKENDS)):
        RESULTS.mkdir(exist_ok=True)
        whole = {"machine": machine(), "rounds": given.rounds, "steps": rows}
        (RESULTS / "predicted.json").write_text(json.dumps(whole, indent=1) + "\n")


def line(row: Mapping[str, Any]) -> str:
    """A row of the table."""
    name = f"{row['model']}, {row['backend']}"
    cells = [
        f"{row[f'{of}measured_ms']:>{width}.3f}{row[f'{of}predicted_ms']:>11.3f}"
        f"{row[f'{of}predicted_ms'] / row[f'{of}measured_ms']:>7.2f}"
        for of, width in (("", 10), ("kernels_", 12))
    ]
    return f"{name:18}{''.join(cells)}"


def _run(backend: str, given: argparse.Namespace) -> list[dict[str, Any]]:
    """The figures of one backend, from a process of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(PINNING)}
    if given.threads is not None:
        environment["NUMBA_NUM_THREADS"] = str(given.threads)
    command = [sys.executable, "-m", "benchmarks.predicted", backend, ",".join(given.models), str(given.rounds)]
    done = subprocess.run(command, env=environment, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(done.returncode)
    rows: list[dict[str, Any]] = json.loads(done.stdout.strip().splitlines()[-1])
    return rows


def measure(backend: str, names: list[str], rounds: int) -> list[dict[str, Any]]:
    """Calibrate and run the steps in turn; predict with the best of the calibrations."""
    from opstage import Options
    from opstage.planning.calibration import measure_rates
    from opstage.planning.step_plan import compare
    from opstage.runs.plan import model_settings, plan, timed_step

    options = Options(backend=backend)
    settings = {name: replace(model_settings(name), options=options) for name in names}
    steps = {name: timed_step(settings[name], SIZES[name]) for name in names}
    calibrations = []
    for _ in range(rounds):
        calibrations.append(measure_rates(options))
        for step in steps.values():
            step.run(0.5)
            _ = step.ops(5) if backend == "eager" else step.kernels(5)
    rates = fastest_rates(calibrations)
    rows = []
    for name in names:
        made = plan(settings[name], at=SIZES[name], on=rates)
        found = compare(made, steps[name], rounds=5, seconds=0.5)
        off = [
            {"name": row.name, "predicted_ms": 1e3 * row.predicted, "measured_ms": 1e3 * row.measured}
            for row in found.off
        ]
        rows.append({"model": name, "backend": backend, "sizes": SIZES[name], **found.as_data(), "off": off})
    return rows


def fastest_rates(found: Sequence[Rates]) -> Rates:
    """Return the best figures of several calibrations of a device; other processes may slow down some of them."""
    first = found[0]
    points: dict[str, dict[tuple[Any, ...], KernelPoint]] = {}
    for rates in found:
        for op, each in rates.kernels.items():
            for point in each:
                known = points.setdefault(op, {})
                key = point.sizes, point.flops, point.nbytes
                known[key] = min(point, known.get(key, point), key=lambda p: p.seconds)
    least = min(found, key=lambda rates: rates.step + _USUAL_CALLS * rates.call + _USUAL_UPDATES * rates.per_parameter)
    return replace(
        first,
        peak=max(rates.peak for rates in found),
        bandwidths=_best_curve([rates.bandwidths for rates in found]),
        one_thread=_best_curve([rates.one_thread for rates in found]),
        loops={op: max(rates.loops[op] for rates in found) for op in first.loops},
        kernels={op: tuple(each.values()) for op, each in points.items()},
        call=least.call,
        per_parameter=least.per_parameter,
        step=least.step,
        looped_call=min(rates.looped_call for rates in found),
        parallel_call=min(rates.parallel_call for rates in found),
    )


def _best_curve(curves: list[tuple[tuple[int, float], ...]]) -> tuple[tuple[int, float], ...]:
    return tuple((points[0][0], max(rate for _, rate in points)) for points in zip(*curves))


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], sys.argv[2].split(","), int(sys.argv[3]))))
