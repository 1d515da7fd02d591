"""onnx's own models of a node or a few: their outputs are in the ranges, and read the operands, that facts claim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Spec
from opstage.ops.errors import UnsupportedError
from tests.analysis.dependence.oracle import FLOAT64, violations
from tests.analysis.ranges.test_ranges_of_ops import wrong
from tests.onnx_nodes.cases import Loaded, cases_of, loaded

NAMES = (
    "test_gathernd", "test_scatternd", "test_scatter_elements", "test_gather_elements", "test_cumsum",
    "test_resize_upsample_scales", "test_quantizelinear", "test_dequantizelinear", "test_dynamicquantizelinear",
    "test_loop", "test_if", "test_scan", "test_mod", "test_bitshift", "test_qlinearmatmul", "test_matmulinteger",
)  # fmt: skip
"""How those begin that are run here, for their indices, loops and rounding; tests/onnx_nodes has the others."""
MODULES = (
    "gathernd", "scatternd", "scatterelements", "gatherelements", "cumsum", "resize", "quantizelinear",
    "dequantizelinear", "dynamicquantizelinear", "loop", "if_", "scan", "mod", "bitshift", "qlinearmatmul",
    "matmulinteger",
)  # fmt: skip
CASES = {name: case for name, case in sorted(cases_of(*MODULES, names=NAMES).items()) if not name.endswith("_expanded")}


def programs(case: Any) -> list[tuple[Loaded, Any, list[Any]]]:
    """The case's program of its inputs alone, its weights constants; and these inputs."""
    found = []
    try:
        given = loaded(case)
    except UnsupportedError as error:
        pytest.skip(str(error))
    for each in given:
        if any(x is None or not isinstance(x, (np.ndarray, np.generic)) for x in each.inputs):
            continue

        def program(ops: Any, *args: Any, model: Any = each.model) -> Any:
            held = [
                {key: ops.const(np.asarray(value)) for key, value in tree.items()}
                for tree in (model.params, model.state)
                if tree is not None
            ]
            result = model(ops, *held, *args)
            return list((result if model.state is None else result[0]).values())

        arrays = [np.asarray(x) for x in each.inputs]
        found.append((each, program, [a if a.dtype.kind in "fb" else a.astype(_integer(a)) for a in arrays]))
    return found


def _integer(array: Any) -> Any:
    return np.int32 if array.dtype == np.int32 else np.int64


def require_ranges(case: Any) -> None:
    """Raise AssertionError where an output is not in its range."""
    for each, program, arrays in programs(case):
        floats = [a.astype(each.dtype) if a.dtype.kind == "f" else a for a in arrays]
        try:
            assert wrong(program, floats, each.dtype) == []
        except UnsupportedError as error:
            pytest.skip(str(error))


def require_dependence(case: Any) -> None:
    """Raise AssertionError where an output reads what its facts do not say."""
    for _, program, arrays in programs(case):
        arrays = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
        if any(not a.size for a in arrays):
            continue
        report = opstage.check(program, *[Spec(a.shape, a.dtype) for a in arrays], options=FLOAT64)
        step = [np.asarray(3)] * (len(report.program.body.inputs) - len(arrays))
        for operand, array in enumerate(arrays if report.ok else []):
            for axis in range(array.ndim):
                if array.shape[axis] <= 4:
                    assert violations(report.program.body, [*arrays, *step], operand=operand, axis=axis) == []


@pytest.mark.parametrize("require", [require_ranges, require_dependence])
@pytest.mark.parametrize("name", CASES)
def test_facts_of_outputs_hold(name: str, require: Callable[[Any], None]) -> None:
    require(CASES[name])
