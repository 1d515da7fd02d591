"""These tests run where numba simulates CUDA, which it decides when it is imported: `make cuda-sim` sees to it."""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1" else ["test_*.py"]
