"""Whether these tests have what they need: `python -m tests.gpu.here` says what is missing and ends with 1."""

from __future__ import annotations

import os
import sys

from opstage.interpreters.eager_cuda.device.probe import require_gpu
from opstage.interpreters.gpus import look
from opstage.ops.errors import UsageError

REHEARSAL = os.environ.get("OPSTAGE_GPU_REHEARSAL") == "1"
"""Whether the simulator stands in for the GPU, and PyTorch's CPU for its own: to see that the tests can be run."""


def missing() -> str:
    """What this machine lacks, or nothing."""
    if REHEARSAL:
        return ""
    if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1":
        return "NUMBA_ENABLE_CUDASIM=1 lets kernels run in Python; unset it"
    try:
        require_gpu(look())
    except UsageError as error:
        return str(error).split(";")[0]
    return ""


if __name__ == "__main__":
    reason = missing()
    if reason:
        print(f"make gpu: nothing was run: {reason}")
    sys.exit(bool(reason))
