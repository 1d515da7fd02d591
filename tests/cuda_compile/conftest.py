"""Where numba compiles for GPUs and not for its simulator, with nvJitLink at hand: `make cuda-compile` sees to it."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version


def _has(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


_COMPILES = os.environ.get("NUMBA_ENABLE_CUDASIM") != "1" and _has("numba-cuda") and _has("nvidia-nvjitlink")
collect_ignore_glob = [] if _COMPILES else ["test_*.py"]
