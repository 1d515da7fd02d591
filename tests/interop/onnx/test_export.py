"""Every sample of every op, written as ONNX: onnx's checker accepts it, and onnxruntime gives what Opstage gives."""

from __future__ import annotations

import numpy as np
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel

import opstage
from opstage import Options, UnsupportedError
from opstage.interop.onnx.export import model_of
from tests.conformance.harness import assert_close, inputs, leaves, program_of
from tests.interop.onnx.runs import checked, run_session, session_of
from tests.interop.onnx.table import NOT_IN_ONNX
from tests.samples import SAMPLES
from tests.samples.parts import all_samples
from tests.samples.sample import Sample

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
