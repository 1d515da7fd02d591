"""CPU time of calls in processes of one thread: on a machine that others use too, wall time measures the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.against_peers import PINNING

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def one_thread() -> dict[str, str]:
    """The environment of a process of one thread, with nothing else that pins a library."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(PINNING)}
    return kept | dict.fromkeys(THREADS, "1")


def alone(module: str, *words: str) -> Any:
    """What a module prints as JSON in a process of its own; SystemExit with its last words where it fails."""
    command = [sys.executable, "-m", module, *words]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, env=one_thread(), cwd=root, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["nothing"]
        raise SystemExit(f"{' '.join(command[2:])} failed: {said[-1]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def best_ms(call: Callable[[], object], rounds: int, seconds: float) -> float:
    """The least CPU time of a call in milliseconds: of each round the mean, and at least two calls. A call before them
    compiles and fills caches."""
    call()
    best = float("inf")
    for _ in range(rounds):
        begin, count, taken = time.process_time(), 0, 0.0
        while count < 2 or taken < seconds:
            call()
            count += 1
            taken = time.process_time() - begin
        best = min(best, taken / count)
    return 1e3 * best
