"""The kernel tables of eager_cpu: the function that computes each primitive, per dtype.

Each file has `KERNELS` for float32, float64, integers and masks, and `EXACT_KERNELS` for arrays of fractions; a file
with compiled kernels has them in `FAST_KERNELS`, which replace the NumPy ones if `Options.fast_kernels` is set. A
composite without an entry runs by loops generated from its decomposition, if `fast_kernels` is set and they support all
of it; else op by op. The table also has the kernels of ops declared by other packages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any

from ....ops.catalogue import table_with_registered
from ....ops.primitive import Primitive

_FILES = ("attention", "convolution", "elementwise", "layout", "linalg", "pooling", "reduction", "sequence")


@cache
def kernel_table(dtype: str, fast: bool) -> Mapping[Primitive, Callable[..., Any]]:
    """Return the kernels for programs that compute in `dtype`."""
    table: dict[Primitive, Callable[..., Any]] = {}
    for file in _FILES:
        module = import_module(f".{file}", __package__)
        if dtype == "exact":
            table.update(module.EXACT_KERNELS)
        else:
            table.update(module.KERNELS)
            if fast:
                table.update(getattr(module, "FAST_KERNELS", {}))
    return table_with_registered("exact" if dtype == "exact" else "cpu", table)
