"""Opstage compiled: each program recorded once and run as machine code. Without numba, if that is found on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks import programs
from benchmarks.programs import peak_of_gpu as peak_of_gpu
from opstage import Options


def step(workload: Any, device: Any = "cpu", precision: Any = "fp32") -> Callable[[], float]:
    return programs.step(workload, Options(backend="compiled", device=device, matmul_precision=precision))
