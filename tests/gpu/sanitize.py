"""Kernels under compute-sanitizer, a family at a time: `python -m tests.gpu.sanitize racecheck attention`.

`memcheck` finds reads and writes outside of memory, `racecheck` threads of a block that use shared memory without a
barrier between them. Under them a kernel takes some hundred times as long, so the cases are few and small.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

from .here import missing

FOUND = 9
"""The exit code with which compute-sanitizer ends where it found something."""


class Family(NamedTuple):
    """Tests that start the kernels in question, which are of one file, and the tools that look at them."""

    file: str
    chosen: str
    tools: tuple[str, ...] = ("memcheck", "racecheck")


FAMILIES: dict[str, Family] = {
    "products": Family("test_parity.py", "test_values and (linear or matmul or bmm)"),
    "convolution": Family("test_parity.py", "test_first_derivatives and (conv or pool)"),
    "reductions": Family("test_fused.py", "any_axes or (rows_around and (sum or mean or max) and (33 or 1000))"),
    "softmax": Family("test_fused.py", "rows_around and softmax and (33 or 1000)"),
    "norms": Family("test_fused.py", "rows_around and norm and (33 or 1000)"),
    "losses": Family("test_fused.py", "(rows_around and mse) or (around_a_warp and (entropy or smoothed))"),
    "attention": Family("test_attention.py", "small"),
    "indexing": Family("test_parity.py", "test_first_derivatives and (gather or scatter)"),
    "updates": Family("test_updates.py", "all_at_once"),
    "long-rows": Family("test_rows.py", "long1025 or long129"),
    "compiled": Family("test_replay.py", "mlp"),
}


def command(tool: str, family: Family, found: str) -> list[str]:
    tests = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"tests/gpu/{family.file}"]
    return [found, "--tool", tool, "--error-exitcode", str(FOUND), *tests, "-k", family.chosen]


def main(words: Sequence[str]) -> int:
    tool, name = words
    found = shutil.which("compute-sanitizer")
    if found is None:
        print("compute-sanitizer was not found: it comes with NVIDIA's CUDA toolkit")
        return 1
    code = subprocess.run(command(tool, FAMILIES[name], found)).returncode
    print(f"{tool}, {name}: {'no error' if code == 0 else 'ERRORS' if code == FOUND else f'ended with {code}'}")
    return code


if __name__ == "__main__":
    if missing():
        sys.exit(f"nothing was run: {missing()}")
    sys.exit(main(sys.argv[1:]))
