"""One side of one workload, alone in its process: prints time to first step, medians and peak memory as JSON."""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time


def main(side: str, name: str, seconds: float) -> None:
    start = time.perf_counter()
    from importlib import import_module

    from benchmarks.workloads import WORKLOADS

    one = import_module(f"benchmarks.sides.{side}").step(WORKLOADS[name])
    if one is None:
        print(json.dumps(None))
        return
    losses = [one()]
    first = time.perf_counter() - start
    for _ in range(4):
        losses.append(one())
    taken: list[float] = []
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop or len(taken) < 5:
        begin = time.perf_counter()
        losses.append(one())
        taken.append(time.perf_counter() - begin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(
        json.dumps(
            {
                "median_ms": 1e3 * statistics.median(taken),
                "best_ms": 1e3 * min(taken),
                "steps": len(taken),
                "first_step_s": first,
                "peak_bytes": peak,
                "losses": [losses[0], losses[-1]],
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
