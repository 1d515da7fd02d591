"""PyTorch with torch.compile over forward and loss (and so its backward), the update fused as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._inductor.compile_fx  # imported anyway, but later, where it would not count as an import

from benchmarks.sides import torch_eager
from benchmarks.workloads import Chain


def step(workload: Any) -> Callable[[], float] | None:
    if isinstance(workload, Chain):
        return None  # a chain of 16,000 ops does not compile in reasonable time
    return torch_eager.step(workload, wrap=torch.compile)
