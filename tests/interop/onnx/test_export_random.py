"""Random programs, their gradients and the updates made of them, as ONNX models beside the graph run op by op."""

from __future__ import annotations

import numpy as np
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel

from opstage import Options
from opstage.interpreters.graph.recorder import replay
from opstage.interpreters.registry import make_interpreter
from opstage.ops.types import dtype_name
from tests.graph.random_programs import random_graph
from tests.interop.onnx.runs import checked, run_session, session_of
from tests.searches import share

TOLERANCE = {"float64": 1e-9, "float32": 2e-3}


def agrees(seed: int) -> bool:
    """Whether the model could be run: not if the program convolves in float64. Fails where it differs."""
    graph, values = random_graph(seed)
    model = checked(graph)
    try:
        session = session_of(model)
    except NoKernel:
        return False
    dtype = dtype_name(graph.dtype)
    ops = make_interpreter(Options(dtype=dtype, fast_kernels=False))
    expected = [ops.get(ref) for ref in replay(ops, graph, [ops.put(value) for value in values])]
    for name, a, e in zip(graph.output_names, run_session(session, graph, values), expected):
        assert a.dtype == e.dtype
        scale = 1e-3 + np.abs(e).max(initial=0)
        np.testing.assert_allclose(a, e, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * scale, err_msg=f"{seed} {name}")
    return True


def test_random_programs() -> None:
    assert sum(agrees(seed) for seed in range(60)) > 20


@pytest.mark.slow
@pytest.mark.soak
def test_many_random_programs() -> None:
    assert sum(agrees(seed) for seed in range(60, 60 + share(2000))) > share(1000)
