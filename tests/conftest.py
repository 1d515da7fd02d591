"""Settings for the whole suite."""

from __future__ import annotations

import os

if "PYTEST_XDIST_WORKER" in os.environ:
    # one worker a core: a BLAS that starts a thread per core in each of them stalls them all (read when NumPy loads)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from hypothesis import settings

settings.register_profile("opstage", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("opstage")
