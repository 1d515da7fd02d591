"""How long `import opstage` takes in a fresh process, beside importing NumPy alone."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

ROUNDS = 11
LIMIT_SECONDS = 0.5


def seconds(statement: str) -> float:
    code = f"import time; start = time.perf_counter(); {statement}; print(time.perf_counter() - start)"
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It has none."""


def main(given: argparse.Namespace) -> None:
    numpy, opstage = [], []
    for _ in range(ROUNDS):
        numpy.append(seconds("import numpy"))
        opstage.append(seconds("import opstage"))
    ours = statistics.median(opstage)
    verdict = "within" if ours <= LIMIT_SECONDS else "OVER"
    print(f"import time, median of {ROUNDS} fresh processes")
    print(f"  numpy          {statistics.median(numpy):6.3f} s")
    print(f"  opstage        {ours:6.3f} s, NumPy included ({verdict} the limit of {LIMIT_SECONDS} s)")
