"""Every sample of every op, written as ONNX: onnx's checker accepts it, and onnxruntime gives what Opstage gives."""

from __future__ import annotations

import numpy as np
import optree
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel

import opstage
from opstage import Options, UnsupportedError
from opstage.interop.onnx.export import model_of
from opstage.interpreters.graph.recorder import replay
from opstage.interpreters.registry import make_interpreter
from opstage.ops.types import dtype_name
from tests.conformance.harness import assert_close, inputs, leaves, program_of
from tests.graph.random_programs import random_graph
from tests.interop.onnx.runs import checked, run_session, session_of
from tests.interop.onnx.table import NOT_IN_ONNX, PAGE, page
from tests.ops import test_arrange, test_images, test_indexing, test_resample
from tests.ops.functions import FLOAT64, Row, drawn
from tests.samples import SAMPLES
from tests.samples.parts import all_samples
from tests.samples.sample import Sample
from tests.searches import share

# ONNX has these in float64; the runtime has no kernel for that dtype, or has not in every version.
NO_FLOAT64_KERNEL = {
    *("AveragePool", "Conv", "ConvTranspose", "Det", "Erf", "Softplus"),
    *("Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh"),
}

# What the runtime computes otherwise than both Opstage and the words of ONNX, or where ONNX says nothing.
RUNTIME = {
    "ifft-vector": "its factor 1/n is rounded to float32",
    "ifft-stack": "its factor 1/n is rounded to float32",
    "sigmoid-edges": "it gives 0 below -18, where 1/(1 + e^-x) is 1e-9",
    "reduce_max-infinities and nan": "ONNX leaves the result for nan undefined",
    "reduce_min-infinities, nan and ties": "ONNX leaves the result for nan undefined",
    "argmin-edges, kept": "ONNX leaves the result for nan undefined",
    "argsort-edges": "ONNX leaves the result for nan undefined",
    "argsort-edges, descending": "ONNX leaves the result for nan undefined",
    "max_pool-nan-wins": "ONNX leaves the result for nan undefined",
    "max_pool-nothing-above-padding": "its maximum starts from the smallest finite float32, not from -inf",
}


@pytest.mark.parametrize("sample", [s for s in SAMPLES if s.op in NOT_IN_ONNX], ids=lambda s: s.id)
def test_an_op_that_onnx_has_not_is_refused_by_name(sample: Sample) -> None:
    args = inputs(sample, "float32")
    graph = opstage.record(program_of(sample), *args)
    with pytest.raises(UnsupportedError, match=f"ONNX cannot express {sample.op}"):
        model_of(graph)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sample", all_samples([s for s in SAMPLES if s.op not in NOT_IN_ONNX]))
def test_sample(sample: Sample, dtype: str) -> None:
    options, args = Options(dtype=dtype, fast_kernels=False), inputs(sample, dtype)
    graph = opstage.record(program_of(sample), *args, options=options)
    model = checked(graph)
    try:
        session = session_of(model)
    except NoKernel as error:
        assert dtype == "float64" and any(f"for {op}(" in str(error) for op in NO_FLOAT64_KERNEL), error
        return
    if sample.id in RUNTIME:
        return
    actual = run_session(session, graph, *args)
    expected = leaves(opstage.run(program_of(sample), *args, options=options))
    assert [a.dtype for a in actual] == [e.dtype for e in expected]
    assert_close(actual, expected, getattr(sample, dtype), f"{sample.id} in {dtype}")


@pytest.mark.parametrize("case", RUNTIME)
def test_what_the_runtime_does_otherwise_is_a_sample(case: str) -> None:
    assert case in {sample.id for sample in SAMPLES}


def test_repeated_indices_add_up() -> None:
    """More updates than a runtime would do one after the other by chance."""

    def program(ops, x, v, index):
        return ops.scatter_add_row(x, v, index)

    rng = np.random.default_rng(1)
    args = (np.zeros((3, 4)), rng.standard_normal((5000, 4)), rng.integers(0, 3, 5000))
    options = Options(dtype="float64")
    graph = opstage.record(program, *args, options=options)
    (actual,) = run_session(session_of(checked(graph)), graph, *args)
    np.testing.assert_allclose(actual, opstage.run(program, *args, options=options), rtol=1e-12)


# Functions over ops ---------------------------------------------------------------------------------------------------


# AveragePool of onnxruntime has no float64.
ROWS = [
    row for module in (test_arrange, test_images, test_resample, test_indexing) for row in module.ROWS
    if row.name != "lp_pool"
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_onnxruntime_computes_the_same(row: Row) -> None:
    arrays = drawn(row)
    graph = opstage.record(row.call, *arrays, options=FLOAT64)
    results = run_session(session_of(checked(graph)), graph, *arrays)
    expected = optree.tree_leaves(row.reference(*arrays))
    assert len(results) == len(expected)
    for ours, reference in zip(results, expected):
        assert ours.shape == np.shape(reference)
        np.testing.assert_allclose(ours, reference, rtol=1e-8, atol=1e-9)


# Random programs, their gradients and updates -------------------------------------------------------------------------


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


# The table of the guide -----------------------------------------------------------------------------------------------


def test_the_table_is_as_the_models_are() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m tests.interop.onnx.table`"
