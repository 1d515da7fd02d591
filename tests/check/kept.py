"""What a tape really keeps after a forward pass, in bytes of arrays, as NumPy itself reports them."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Mapping
from typing import Any

import numpy as np

from opstage import Options
from opstage.init import build
from opstage.interpreters.registry import make_interpreter
from opstage.models import Model
from opstage.ops.trees import map_leaves
from opstage.program_arguments import with_train
from opstage.transforms.derivatives import run_on_tape
from tests.memory.measured import batch_of

PLAIN = Options(fast_kernels=False)  # what a compiled kernel allocates, NumPy does not report


def kept_bytes(model: Model, sizes: Mapping[str, int]) -> int:
    """Bytes of arrays that are alive after the forward pass of a training step, beside what was given."""
    ops: Any = make_interpreter(PLAIN)

    def put(tree: Any) -> Any:
        return map_leaves(ops.put, tree)

    given = [put(build(model.init, dtype=PLAIN.dtype, seed=0))]
    given += [] if model.state is None else [put(build(model.state, dtype=PLAIN.dtype, seed=0))]
    given += [put(array) for array in batch_of(model, sizes)]
    wanted = tuple(i == 0 for i in range(len(given)))

    def loss(ops: Any, *arguments: Any) -> Any:
        result = with_train(model.loss, True)(ops, *arguments)
        return result[0] if isinstance(result, tuple) else result

    tracemalloc.start()
    try:
        run_on_tape(ops, loss, tuple(given), wanted)  # memory that kernels keep is taken
        gc.collect()
        before = _live_bytes()
        _, _, outputs, _ = run_on_tape(ops, loss, tuple(given), wanted)
        gc.collect()
        return _live_bytes() - before - outputs[0].value.nbytes
    finally:
        tracemalloc.stop()


def _live_bytes() -> int:
    snapshot = tracemalloc.take_snapshot()
    arrays = tracemalloc.DomainFilter(inclusive=True, domain=np.lib.tracemalloc_domain)
    return sum(trace.size for trace in snapshot.filter_traces([arrays]).traces)
