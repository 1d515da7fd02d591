"""onnx's own node tests as cases for Opstage, and which of them it does not import, with the reason."""

from __future__ import annotations

import importlib
import re
import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper
from onnx.backend.test.case import node as suite

import opstage
import opstage.onnx
from opstage import Options
from opstage.interop.onnx.operators import HOST_INPUTS
from opstage.onnx import OnnxModel
from opstage.ops.errors import UnsupportedError

HALF = {"float16": (1e-2, 1e-3), "bfloat16": (3e-2, 1e-2)}
"""Relative and absolute tolerance where the reference rounds to fewer bits than any dtype here has."""


@cache
def cases() -> dict[str, Any]:
    """By name, each with its `model` and `data_sets`. onnx computes them, which takes 6 seconds of a core."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, about the edges that the cases are made of
        return {case.name: case for case in suite.collect_testcases(None)}


@cache
def cases_of(*modules: str, names: tuple[str, ...]) -> dict[str, Any]:
    """Those of some of onnx's modules alone, whose names begin with one of `names`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in modules:
            importlib.import_module(f"{suite.__name__}.{module}")
    return {case.name: case for case in suite._NodeTestCases if case.name.startswith(names)}


@dataclass(frozen=True)
class Loaded:
    """A case as Opstage takes it.

    model    the program
    inputs   its inputs, without those that are fixed
    outputs  what it must give, beside each its tolerance
    """

    model: OnnxModel
    inputs: list[Any]
    outputs: list[tuple[Any, float, float]]
    dtype: str

    def run(self, backend: str) -> list[Any]:
        """The outputs."""
        trees = (self.model.params,) if self.model.state is None else (self.model.params, self.model.state)
        options = Options(backend=backend, dtype=self.dtype)
        result = opstage.run(self.model, *trees, *self.inputs, options=options)
        return list((result if self.model.state is None else result[0]).values())


def loaded(case: Any) -> list[Loaded]:
    """A case's model with each of its sets of data. Raises UnsupportedError where it cannot be imported."""
    found = []
    model = case.model
    text = model.SerializeToString()
    for given, expected in case.data_sets:
        inputs = dict(zip([each.name for each in model.graph.input], map(_plain, given)))
        outputs = [_plain(value) for value in expected]
        fixed = {name: inputs[name] for name in _shapes(model) if name in inputs}
        try:
            program = opstage.onnx.load(text, fixed=fixed)
        except UnsupportedError:  # some reach what must be known through other nodes
            fixed |= {name: value for name, value in inputs.items() if _may_be_a_shape(value)}
            program = opstage.onnx.load(text, fixed=fixed)
        wide = any(getattr(a, "dtype", None) == np.float64 for a in [*inputs.values(), *outputs])
        rest = [value for name, value in inputs.items() if name not in fixed]
        limits = [_tolerance(case, raw) for raw in [*given, *expected]]
        rtol, atol = max(r for r, _ in limits), max(a for _, a in limits)
        checked = [(value, rtol, atol) for value in outputs]
        found.append(Loaded(program, rest, checked, "float64" if wide else "float32"))
    return found


def require_equal(found: list[Any], expected: list[tuple[Any, float, float]]) -> None:
    """Raise AssertionError where outputs differ."""
    assert len(found) == len(expected)
    for mine, (theirs, rtol, atol) in zip(found, expected):
        assert mine.shape == theirs.shape, f"shape {mine.shape}, not {theirs.shape}"
        np.testing.assert_allclose(mine.astype(theirs.dtype), theirs, rtol=rtol, atol=atol)


def _tolerance(case: Any, value: Any) -> tuple[float, float]:
    """What onnx's own runner allows of a case, and rounding in float32; more where numbers have half the bits."""
    rtol, atol = case.rtol or 1e-3, max(case.atol or 0.0, 5e-7)
    name = _plain_name(value)
    return (max(rtol, HALF[name][0]), max(atol, HALF[name][1])) if name in HALF else (rtol, atol)


def _plain_name(value: Any) -> str:
    if isinstance(value, TensorProto):
        value = numpy_helper.to_array(value)
    return str(getattr(getattr(value, "dtype", None), "name", ""))


def _plain(value: Any) -> Any:
    """Arrays as NumPy has them: onnx gives some as messages, and some in a type that NumPy has not."""
    if isinstance(value, TensorProto):
        value = numpy_helper.to_array(value)
    if isinstance(value, np.ndarray) and value.dtype.name == "bfloat16":
        return value.astype(np.float32)
    return value


def _shapes(model: Any) -> list[str]:
    """Inputs of the graph that its nodes must know: shapes, axes, counts."""
    names = {each.name for each in model.graph.input}
    found = set()
    for node in model.graph.node:
        op = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        found |= {node.input[i] for i in HOST_INPUTS.get(op, ()) if i < len(node.input)} & names
    return sorted(found)


def small_inputs(case: Any) -> dict[str, Any]:
    """The inputs of a case that are shapes, axes or counts, or may be some."""
    given = dict(zip([each.name for each in case.model.graph.input], map(_plain, case.data_sets[0][0])))
    return {name: value for name, value in given.items() if _is_whole(value) and _may_be_a_shape(value)}


def _is_whole(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "iub"


def _may_be_a_shape(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.ndim <= 1 and value.size <= 8


# Which of onnx's node tests Opstage does not import, and why; each must really fail, with what is said here in the ----

_NO_DTYPE = "elements of 8 bits and fewer, texts and complex numbers have no dtype, nor has arithmetic on uint64"
_NO_TENSOR = "it is a sequence or an optional, no tensor"
_NO_SIZE = "a size, or how often it runs, is computed from values"
_NO_ROUNDING = "rounding to float16 or bfloat16 means nothing where all floats are of one dtype"
_RESIZING = "runtimes differ in how they resize so"
_UNKNOWN = "the operator is not known"

REASONS: tuple[tuple[str, str], ...] = (
    (r"have no dtype here|of a kind that is not read", _NO_DTYPE),
    (r"is a (sequence|optional|map|sparse_tensor)|gives? sequences|carries a sequence", _NO_TENSOR),
    (r"only tensors are outputs", _NO_TENSOR),
    (r"cast to b?float16 would not round", _NO_ROUNDING),
    (r"is computed from values|is not known before a run|whether it|how often it|must be known", _NO_SIZE),
    (r"antialias|align_corners by scales|tf_crop_and_resize|policy on proportions|integers are not resized", _RESIZING),
    (r"its operators are of version", "its operators are of a version below 7"),
    (r"is not known|output.* used, of which", _UNKNOWN),
)
"""Pattern of the message, and the reason in the table of the documentation."""

DRAWS = tuple(f"test_training_dropout{end}" for end in ("", "_default", "_mask", "_default_mask"))
"""Cases whose outputs are draws of the reference's own generator: their shapes alone are compared."""


def reason(message: str) -> str | None:
    """Why a case is not imported; None for a message that no reason explains."""
    return next((why for pattern, why in REASONS if re.search(pattern, message)), None)
