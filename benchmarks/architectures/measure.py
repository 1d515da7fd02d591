"""Small architectures, each as a PyTorch module and as a program over Ops: CPU time of a training step on one thread.

Forward, backward and AdamW, from the same parameters on the same batch. Each side runs alone in a process of its own
with one thread, the best of some rounds counts, and the losses of the first steps must agree: otherwise nothing is
measured. A ratio is PyTorch's time over ours, above 1 where ours is faster; * marks those under the goal.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.against_peers import machine
from benchmarks.architectures.zoo import ZOO
from benchmarks.choices import names_of, positive
from benchmarks.cpu_time import alone
from benchmarks.report import RESULTS, geometric_mean

GOALS = {"eager": 1.0, "compiled": 1.2}
"""What PyTorch's time over ours should reach, by backend."""
SIDES = ("torch", *GOALS)
FIRST, LATER = 2e-4, 3e-2  # relative: before the first update, and after it, which turns noise of gradients into steps

Sides = Mapping[str, Mapping[str, Any]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--list", action="store_true", help="say what there is, and measure nothing")
    parser.add_argument("--only", type=names_of(ZOO), default=list(ZOO), metavar="A,B")
    parser.add_argument("--rounds", type=positive(int), default=3, metavar="N", help="of steps of each side (3)")


def main(given: argparse.Namespace) -> None:
    if given.list:
        for name, architecture in ZOO.items():
            print(f"{name:16}{' '.join((type(architecture).__doc__ or '').split())}")
        return
    print(f"{'':16}{'torch ms':>10}{'eager ms':>10}{'ratio':>8}{'compiled ms':>13}{'ratio':>8}")
    rows: dict[str, dict[str, float]] = {}
    for name in given.only:
        rows[name] = figures(name, measured(name, given.rounds))
        print(line(name, rows[name]), flush=True)
    print(verdict(rows))
    if given.only == list(ZOO):
        RESULTS.mkdir(exist_ok=True)
        whole = {"machine": machine(), "rounds": given.rounds, "threads": 1, "time": "CPU", "architectures": rows}
        (RESULTS / "architectures.json").write_text(json.dumps(whole, indent=1) + "\n")


def measured(name: str, rounds: int) -> Sides:
    """The losses and the time of each side, which have the same parameters."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "parameters.npz")
        return {side: alone("benchmarks.architectures.side", side, name, str(rounds), path) for side in SIDES}


def figures(name: str, sides: Sides) -> dict[str, float]:
    """Times and ratios. SystemExit where the sides do not train the same model."""
    theirs = sides["torch"]
    for side in GOALS:
        for step, (a, b) in enumerate(zip(theirs["losses"], sides[side]["losses"], strict=True)):
            if not math.isclose(a, b, rel_tol=LATER if step else FIRST, abs_tol=1e-3 if step else 0.0):
                raise SystemExit(f"{name}: in step {step + 1} PyTorch's loss is {a:.6g}, that of {side} {b:.6g}")
    found = {"torch_ms": theirs["step_ms"]}
    for side in GOALS:
        found |= {f"{side}_ms": sides[side]["step_ms"], f"{side}_ratio": theirs["step_ms"] / sides[side]["step_ms"]}
    return found


def line(name: str, row: Mapping[str, float]) -> str:
    """A row of the table, * behind a ratio under its goal."""
    cells = [
        f"{row[f'{side}_ms']:>{width}.2f}{row[f'{side}_ratio']:>7.2f}{'*' if row[f'{side}_ratio'] < goal else ' '}"
        for (side, goal), width in zip(GOALS.items(), (10, 13))
    ]
    return f"{name:16}{row['torch_ms']:>10.2f}{''.join(cells)}".rstrip()


def verdict(rows: Mapping[str, Mapping[str, float]]) -> str:
    """How many reach the goals, and the geometric means."""
    said = []
    for side, goal in GOALS.items():
        ratios = [row[f"{side}_ratio"] for row in rows.values()]
        mean = geometric_mean(ratios) or math.nan
        reached = sum(ratio >= goal for ratio in ratios)
        said.append(f"{side}: {reached} of {len(rows)} reach {goal}, geometric mean {mean:.2f}")
    return "; ".join(said)
