"""Random programs, their gradients and updates, compiled for a simulated device and held to the CPU's."""

from __future__ import annotations

import numpy as np
import pytest

from opstage.compiler.gpu.simulator import Simulator
from opstage.interpreters.eager_cpu import NumpyOps
from opstage.interpreters.graph.cuda.executor import CompiledCudaOps
from opstage.interpreters.graph.recorder import replay
from opstage.options import Options
from tests.graph.random_programs import random_graph
from tests.searches import share

STEP = 3


def agrees(seed: int, size: int) -> None:
    """Twice on new buffers: where inputs stand, and where they are copied to."""
    graph, arrays = random_graph(seed, size, single=True)
    ops = CompiledCudaOps(Options(device="cuda", backend="compiled"), Simulator())
    executor = ops.compile(graph)
    with np.errstate(all="ignore"):
        expected = replay(NumpyOps(Options(seed=graph.seed)), graph, arrays, STEP)
    for _ in range(2):
        results = executor.run([ops.put(array) for array in arrays], STEP)
        for result, wanted in zip(map(ops.get, results), map(np.asarray, expected), strict=True):
            assert (result.shape, result.dtype) == (wanted.shape, wanted.dtype)
            scale = 1 + np.max(np.abs(wanted), initial=0.0, where=np.isfinite(wanted))
            np.testing.assert_allclose(result, wanted, rtol=2e-3, atol=2e-4 * scale, err_msg=f"seed {seed}")


@pytest.mark.parametrize("start", range(0, 40, 10))
def test_random_programs(start: int) -> None:
    for seed in range(start, start + 10):
        agrees(seed, 12)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("start", range(1000, 1000 + share(1000), 50))
def test_many_more_random_programs(start: int) -> None:
    for seed in range(start, start + 50):
        agrees(seed, 4 + seed % 20)
