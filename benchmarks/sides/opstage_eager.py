"""Opstage on the eager CPU tape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba  # noqa: F401  # Opstage imports it when it first runs, where it would not count as an import

from benchmarks import programs
from opstage import Options


def step(workload: Any) -> Callable[[], float]:
    return programs.step(workload, Options())
