"""One side of one workload, alone in its process: prints time to first step, medians and peak memory as JSON.

The time to the first step counts from `started`, the wall clock when the process was asked for, so it holds the start
of Python and all imports. Memory is the high-water mark of what is resident, and what was resident once the side was
imported, before it made anything. On a GPU it is the most of the GPU's memory that the side has asked for at a time.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

LEAST_STEPS = 5


def main(
    side: str, name: str, seconds: float, started: float, device: str = "cpu", precision: str = "fp32"
) -> dict[str, Any] | None:
    """Figures of the steps of `seconds` seconds; with 0 of the first step alone. None if the side has no such step."""
    from benchmarks.workloads import ON_GPU

    module = import_module(f"benchmarks.sides.{side}")
    imported = resident("VmRSS")
    one = module.step(ON_GPU[name], device, precision)
    if one is None:
        return None
    losses = [one()]
    first = time.time() - started
    taken = _timed(one, losses, seconds) if seconds else []
    peak = resident("VmHWM")
    if device == "cuda":
        peak, imported = module.peak_of_gpu(), 0
    return {
        "median_ms": 1e3 * statistics.median(taken) if taken else None,
        "best_ms": 1e3 * min(taken) if taken else None,
        "steps": len(taken),
        "first_step_s": first,
        "peak_bytes": peak,
        "imported_bytes": imported,
        "losses": [losses[0], losses[-1]],
    }


def _timed(one: Any, losses: list[float], seconds: float) -> list[float]:
    for _ in range(LEAST_STEPS - 1):
        losses.append(one())
    taken: list[float] = []
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop or len(taken) < LEAST_STEPS:
        begin = time.perf_counter()
        losses.append(one())
        taken.append(time.perf_counter() - begin)
    return taken


def resident(what: str) -> int:
    """Bytes of this process that are resident (VmRSS), or were at most (VmHWM).

    Not `getrusage`: its peak is handed on from the process that started this one.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith(what):
                return 1024 * int(line.split()[1])
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]), *sys.argv[5:])))
