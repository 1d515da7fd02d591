"""Checking GPT-2 XL on shapes, forward and as a whole training step, beside PyTorch's meta device and JAX's eval_shape.

48 layers, 1.6 B parameters, none of them allocated. Opstage checks every batch size and every length at once, the peers
one of each. Each side runs alone in its process, several times in turn; `first` is the first call of a process, imports
apart, the others are medians. Memory is what becomes resident beyond the imports.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.against_peers import PINNING, machine
from benchmarks.choices import names_of, positive
from benchmarks.report import RESULTS
from benchmarks.run_side import resident
from benchmarks.workloads import Gpt

GPT2_XL = Gpt(layers=48, heads=25, width=1600, length=1024, batch=8, vocabulary=50257)
SIDES = ("opstage_check", "torch_meta", "jax_shapes")
LIMITS_MS = {"forward": 50.0, "whole step": 150.0}
LIMIT_BYTES = 50e6

_CALLS = 7


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sides", type=names_of(SIDES), default=list(SIDES), metavar="A,B")
    parser.add_argument("--rounds", type=positive(int), default=3, metavar="N", help="processes of each side (3)")


def main(given: argparse.Namespace) -> None:
    runs: dict[str, list[Any]] = {side: [] for side in given.sides}
    for _ in range(given.rounds):
        for side, done in runs.items():
            done.append(_run(side))
    found = {side: summarise(each) for side, each in runs.items()}
    print(f"{'':16}{'first forward':>16}{'forward':>12}{'first step':>16}{'whole step':>12}{'memory':>12}")
    for side, figures in found.items():
        print(line(side, figures))
    ours = found.get(SIDES[0])
    for peer in SIDES[1:]:
        if ours is not None and peer in found:
            ratios = (f"{part} {found[peer][part]['median_ms'] / ours[part]['median_ms']:.1f}" for part in LIMITS_MS)
            print(f"{peer} / {SIDES[0]}: {', '.join(ratios)}")
    if ours is not None:
        within = all(ours[part]["median_ms"] <= limit for part, limit in LIMITS_MS.items())
        within = within and ours["bytes"] <= LIMIT_BYTES
        limits = ", ".join(f"{part} {limit:.0f} ms" for part, limit in LIMITS_MS.items())
        print(f"{'within' if within else 'OVER'} the limits: {limits}, {LIMIT_BYTES / 1e6:.0f} MB")
    if set(found) == set(SIDES):
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "checking.json").write_text(json.dumps({"machine": machine(), "sides": found}, indent=1) + "\n")


def summarise(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of the processes of one side."""
    parts = {
        part: {
            "first_ms": statistics.median(run[part][0] for run in runs),
            "median_ms": statistics.median(statistics.median(run[part][1:]) for run in runs),
        }
        for part in LIMITS_MS
    }
    return {**parts, "bytes": max(run["bytes"] for run in runs)}


def line(side: str, figures: Mapping[str, Any]) -> str:
    """A row of the table."""
    times = "".join(f"{figures[part]['first_ms']:>13.1f} ms{figures[part]['median_ms']:>9.1f} ms" for part in LIMITS_MS)
    return f"{side:16}{times}{figures['bytes'] / 1e6:>9.1f} MB"


def _run(side: str) -> Any:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(PINNING)}
    command = [sys.executable, "-m", "benchmarks.checking", side]
    done = subprocess.run(
        command, env=environment, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.strip().splitlines()[-1])


def _measure(side: str) -> dict[str, Any]:
    """Milliseconds of each call, and the memory that became resident meanwhile."""
    parts = import_module(f"benchmarks.checks.{side}").parts(GPT2_XL)
    imported, found = resident("VmRSS"), {}
    for part, check in parts.items():
        found[part] = []
        for _ in range(_CALLS):
            begin = time.perf_counter()
            check()
            found[part].append(1e3 * (time.perf_counter() - begin))
    return {**found, "bytes": resident("VmHWM") - imported}


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1])))
