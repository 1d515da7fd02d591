"""Opstage compiled: the programs of `opstage_eager`, each recorded once and run as machine code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.sides import opstage_eager
from opstage import Options


def step(workload: Any) -> Callable[[], float]:
    return opstage_eager.step(workload, Options(backend="compiled"))
