"""Opstage on the eager tape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba  # noqa: F401  # Opstage imports it when it first runs, where it would not count as an import

from benchmarks import programs
from benchmarks.programs import peak_of_gpu as peak_of_gpu
from opstage import Options


def step(workload: Any, device: Any = "cpu", precision: Any = "fp32") -> Callable[[], float]:
    return programs.step(workload, Options(device=device, matmul_precision=precision))
