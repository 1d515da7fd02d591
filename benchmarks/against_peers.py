"""Opstage against its peers, workload by workload: whole training steps, each side alone in its own process, in turn.

A ratio above 1 means that Opstage is faster (peer's median / ours). The processes start with every OPENBLAS_*, MKL_*
and OMP_* variable cleared, because such a variable can pin a library to an older core or another number of threads.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.workloads import WORKLOADS

SIDES = ("opstage_eager", "torch_eager", "torch_compile", "jax_jit")
RESULTS = Path(__file__).parent / "results"
PINNING = ("OPENBLAS_", "MKL_", "OMP_")
ROUNDS = 3
SECONDS = 2.0
LIMIT_SECONDS = 240


def main() -> None:
    cleared = sorted(name for name in os.environ if name.startswith(PINNING))
    environment = {name: value for name, value in os.environ.items() if name not in cleared}
    print(f"cleared from the environment: {', '.join(cleared) or 'nothing'}")
    print(f"{'workload':<12}" + "".join(f"{side:>16}" for side in SIDES) + "   best peer / ours")
    record: dict[str, Any] = {"machine": _machine(), "rounds": ROUNDS, "seconds_per_round": SECONDS, "workloads": {}}
    for name, workload in WORKLOADS.items():
        runs: dict[str, list[Any]] = {side: [] for side in SIDES}
        for _ in range(ROUNDS):
            for side in SIDES:
                if not runs[side] or runs[side][-1] is not None:
                    runs[side].append(_run(side, name, environment))
        summary = {side: _summary(side_runs) for side, side_runs in runs.items()}
        record["workloads"][name] = {"flops": workload.flops(), **summary}
        print(_line(name, summary))
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "cpu.json").write_text(json.dumps(record, indent=1) + "\n")
    _plot(record, RESULTS / "cpu.svg")


def _run(side: str, name: str, environment: dict[str, str]) -> Any:
    command = [sys.executable, "-m", "benchmarks.run_side", side, name, str(SECONDS)]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode != 0:
        print(f"  {side} on {name}: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'failed'}")
        return None
    return json.loads(done.stdout.strip().splitlines()[-1])


def _summary(runs: list[Any]) -> dict[str, Any] | None:
    runs = [run for run in runs if run is not None]
    if not runs:
        return None
    medians = [run["median_ms"] for run in runs]
    return {
        "median_ms": statistics.median(medians),
        "medians_ms": medians,
        "first_step_s": statistics.median(run["first_step_s"] for run in runs),
        "peak_bytes": max(run["peak_bytes"] for run in runs),
        "losses": runs[0]["losses"],
    }


def ratio(summary: dict[str, Any]) -> float | None:
    """Best peer's median over ours."""
    ours = summary["opstage_eager"]
    peers = [summary[side]["median_ms"] for side in SIDES[1:] if summary[side] is not None]
    return min(peers) / ours["median_ms"] if ours and peers else None


def _line(name: str, summary: dict[str, Any]) -> str:
    cells = "".join(f"{s['median_ms']:>13.2f} ms" if s is not None else f"{'-':>16}" for s in summary.values())
    best = ratio(summary)
    torch = summary["torch_eager"]
    against = f"{torch['median_ms'] / summary['opstage_eager']['median_ms']:.2f}" if torch else "-"
    return f"{name:<12}{cells}   {f'{best:.2f}' if best else '-'}   (torch eager / ours {against})"


def _machine() -> dict[str, Any]:
    packages = {}
    for name in ("numpy", "numba", "torch", "jax"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = None
    return {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count(), "packages": packages}


def _plot(record: dict[str, Any], path: Path) -> None:
    """Bars of each peer's time over ours, as a small SVG."""
    names = list(record["workloads"])
    colours = {"torch_eager": "#ee4c2c", "torch_compile": "#7a3db8", "jax_jit": "#3367d6"}
    width, row, left = 640, 60, 110
    ratios = {
        (name, side): entry[side]["median_ms"] / entry["opstage_eager"]["median_ms"]
        for name, entry in record["workloads"].items()
        for side in colours
        if entry.get(side) and entry.get("opstage_eager")
    }
    top = max([*ratios.values(), 1.0])
    unit = (width - left - 60) / top
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{row * len(names) + 60}" '
        'font-family="sans-serif" font-size="12">',
        '<text x="8" y="18">time of each peer / time of Opstage eager (right of the line: Opstage is faster)</text>',
    ]
    for i, name in enumerate(names):
        y = 30 + i * row
        parts.append(f'<text x="8" y="{y + 26}">{name}</text>')
        for j, (side, colour) in enumerate(colours.items()):
            value = ratios.get((name, side))
            if value is not None:
                parts.append(
                    f'<rect x="{left}" y="{y + 14 * j}" width="{value * unit:.1f}" height="11" fill="{colour}"/>'
                    f'<text x="{left + value * unit + 4:.1f}" y="{y + 14 * j + 10}">{value:.2f} {side}</text>'
                )
    x, bottom = left + unit, 30 + row * len(names)
    parts.append(f'<line x1="{x:.1f}" y1="24" x2="{x:.1f}" y2="{bottom}" stroke="black"/></svg>')
    path.write_text("\n".join(parts) + "\n")
