"""Training steps of a workload on a GPU beside those of PyTorch and JAX, written into benchmarks/results/:
`python -m tests.gpu.steps fp32 mlp`.

A peer that is not installed is left out, and named.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

from benchmarks import against_peers, report
from benchmarks.__main__ import parser

from .here import missing

PACKAGES = {"torch_eager": "torch", "torch_compile": "torch", "jax_jit": "jax"}


def sides() -> list[str]:
    """Ours, and those of what is installed."""
    return [side for side in report.SIDES if side not in PACKAGES or find_spec(PACKAGES[side]) is not None]


def main(precision: str, workload: str) -> None:
    found = sides()
    for package in sorted({package for side, package in PACKAGES.items() if side not in found}):
        print(f"{package} is not installed, so no step is measured beside its own; install it in a version for CUDA")
    words = ["--device", "cuda", "--precision", precision, "--workloads", workload, "--sides", ",".join(found)]
    against_peers.main(parser().parse_args(["against_peers", *words, "--keep"]))


if __name__ == "__main__":
    if missing():
        sys.exit(f"no steps: {missing()}")
    main(*sys.argv[1:])
