"""numba's threads, for systems without a team: called through `parallel_for` of an extension module.

The OpenMP module of numba has no dependencies, so it is loaded without importing numba, which would take 70 MB to load
a parallel function.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from importlib import import_module, machinery
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from ...forks import make_lock
from .compiler import import_numba

_lock = make_lock()


@cache
def parallel_for(workers: int) -> int:
    """Start the threads and return the address of `parallel_for`."""
    with _lock:
        chosen = os.environ.get("NUMBA_THREADING_LAYER") not in (None, "default", "omp")
        layer = None if chosen or "numba" in sys.modules else _openmp()
        if layer is not None:
            ctypes.CFUNCTYPE(None, ctypes.c_int)(layer.launch_threads)(workers)
        else:
            numba = import_numba()
            _choose_layer(numba)
            numba.get_num_threads()  # starts them
            modules = {"omp": "omppool", "tbb": "tbbpool", "workqueue": "workqueue"}
            layer = import_module(f"numba.np.ufunc.{modules[numba.threading_layer()]}")
    return int(layer.parallel_for)


def has_started() -> bool:
    """Whether threads were started, here or by another user of numba."""
    parallel: Any = sys.modules.get("numba.np.ufunc.parallel")
    return bool(parallel_for.cache_info().currsize) or (
        parallel is not None and getattr(parallel, "_is_initialized", True)
    )


def _openmp() -> Any:
    """Load numba's OpenMP module without numba; None if it is missing."""
    found = find_spec("numba")
    for folder in (found.submodule_search_locations if found is not None else None) or ():
        for suffix in machinery.EXTENSION_SUFFIXES:
            path = Path(folder, "np", "ufunc", f"omppool{suffix}")
            spec = spec_from_file_location("omppool", path) if path.exists() else None
            if spec is not None and spec.loader is not None:
                try:
                    module = module_from_spec(spec)
                    spec.loader.exec_module(module)
                except ImportError:
                    continue
                return module
    return None


def _choose_layer(numba: Any) -> None:
    """Choose OpenMP if available: it starts a step in 1 µs, numba's own work queue in 80."""
    if numba.config.THREADING_LAYER != "default":
        return  # the user's choice
    try:
        import_module("numba.np.ufunc.omppool")
    except ImportError:
        return
    numba.config.THREADING_LAYER = "omp"
