"""PyTorch with torch.compile over forward and loss (and so its backward), the update fused as in eager.

On a GPU the compiled parts are replayed as CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._inductor.compile_fx  # imported anyway, but later, where it would not count as an import

from benchmarks.sides import torch_eager
from benchmarks.sides.torch_eager import peak_of_gpu as peak_of_gpu
from benchmarks.workloads import Chain


def step(workload: Any, device: str = "cpu", precision: str = "fp32") -> Callable[[], float] | None:
    if isinstance(workload, Chain):
        return None  # a chain of 16,000 ops does not compile in reasonable time
    graphs = {"mode": "reduce-overhead"} if device == "cuda" else {}
    return torch_eager.step(workload, device, precision, wrap=lambda f: torch.compile(f, **graphs))
