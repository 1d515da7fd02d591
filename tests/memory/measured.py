"""What a step really takes: counted by an allocator that knows nothing of predictions."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any

import numpy as np

from opstage import Options, scalar_trainer
from opstage.init import build
from opstage.models import Model
from opstage.ops.dims import DimScope
from opstage.ops.spec import sized
from opstage.optim import Optimizer
from tests.graph.counting_allocator import Counted


def batch_of(model: Model, sizes: Mapping[str, int]) -> list[Any]:
    """Numbers of the model's types: floats in (0, 1), and integers that any index may be."""
    rng = np.random.default_rng(0)
    types = [spec.bind(DimScope(), np.dtype(np.float32)) for spec in sized(model.batch, sizes)]
    return [
        (rng.uniform(0.1, 0.9, t.shape) if t.dtype.kind == "f" else rng.integers(0, 2, t.shape)).astype(t.dtype)
        for t in types
    ]


def measured_peak(model: Model, sizes: Mapping[str, int], optimizer: Optimizer, options: Options) -> int:
    """The most bytes of tensors that there are at one time in the steps after the first, of all that the run made."""
    options = options.replace(validate=False)
    params = build(model.init, dtype=options.dtype, seed=0)
    state = None if model.state is None else build(model.state, dtype=options.dtype, seed=0)

    def trainer() -> Any:
        return scalar_trainer(model.loss, params, *model.batch, options=options, state=state)

    before = trainer()
    before.advance(optimizer, before.init_optim(optimizer), *batch_of(model, sizes))  # machine code is made
    del before
    gc.collect()
    forget_workspace()
    with Counted() as count:
        counted, batch = trainer(), batch_of(model, sizes)
        held = counted.init_optim(optimizer)
        counted.advance(optimizer, held, *batch)
        count.peak = count.live
        for _ in range(2):
            counted.advance(optimizer, held, *batch)
        return count.peak


def forget_workspace() -> None:
    """Have kernels take their workspace anew, so that it is counted."""
    from opstage.interpreters.eager_cpu import memory as workspace

    workspace._own.__dict__.clear()
