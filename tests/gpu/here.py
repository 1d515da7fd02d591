"""Whether these tests have what they need: `python -m tests.gpu.here` says what is missing; `--machine`: of GPUs alone.

It ends with 0 where all is there, with 1 where there is no GPU for them, and with 2 where a package is not at hand.
"""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Any

REHEARSAL = os.environ.get("OPSTAGE_GPU_REHEARSAL") == "1"
"""Whether a device whose kernels are simulated stands in for the GPU, and PyTorch's CPU for its own: to see that the
tests can be run."""

NEEDED = {
    "numpy": "numpy",
    "numba": "numba",
    "llvmlite": "llvmlite",
    "numba_cuda": "numba-cuda",
    "cuda.core": "cuda-core",
    "cuda.bindings": "cuda-bindings",
    "cuda.pathfinder": "cuda-pathfinder",
    "click": "click",
    "rich": "rich",
    "markdown_it": "markdown-it-py",
    "mdurl": "mdurl",
    "pygments": "pygments",
    "optree": "optree",
    "safetensors": "safetensors",
    "threadpoolctl": "threadpoolctl",
    "typing_extensions": "typing-extensions",
    "pytest": "pytest",
    "pluggy": "pluggy",
    "iniconfig": "iniconfig",
    "packaging": "packaging",
    "hypothesis": "hypothesis",
    "sortedcontainers": "sortedcontainers",
    "scipy": "scipy",
}
"""Modules, and the packages that bring them."""

ONLY_WITH_A_GPU = ("cuda.core", "cuda.bindings", "cuda.pathfinder")


def absent() -> list[str]:
    """The packages that these tests import and that are not at hand."""
    wanted = [module for module in NEEDED if not (REHEARSAL and module in ONLY_WITH_A_GPU)]
    return [NEEDED[module] for module in wanted if not _there(module)]


def _there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # nor is the package around it
        return False


def missing() -> str:
    """What this machine lacks, or nothing."""
    if REHEARSAL:
        return ""
    if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1":
        return "NUMBA_ENABLE_CUDASIM=1 lets kernels run in Python; unset it"
    from opstage.compiler.gpu.machine import look
    from opstage.compiler.gpu.probe import require_gpu
    from opstage.ops.errors import UsageError

    try:
        require_gpu(look())
    except UsageError as error:
        return str(error).split(";")[0]
    return ""


def stand_in() -> AbstractContextManager[Any]:
    """In a rehearsal, what stands in for the GPU."""
    if not REHEARSAL:
        return nullcontext()
    from tests.cuda.running import running_gpu

    return running_gpu()


def main(*, machine: bool = False) -> int:
    """`machine`: of what must be there only the GPU, for who installs the rest afterwards."""
    packages = [] if machine else absent()
    if packages:
        print(f"make gpu: nothing was run: not at hand are {', '.join(packages)}; see docs/testing-on-a-gpu.md")
        return 2
    reason = missing()
    if reason:
        print(f"make gpu: nothing was run: {reason}")
    return int(bool(reason))


if __name__ == "__main__":
    sys.exit(main(machine="--machine" in sys.argv))
