"""onnx's node tests: what is imported is right, as source too, and within its facts; what is not says why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Spec
from opstage.onnx.source import write_source
from opstage.ops.errors import OpstageError, UnsupportedError
from tests.facts.test_onnx_nodes import CASES, require_dependence, require_ranges
from tests.interop.test_source import module_of, trees_of

from .cases import DRAWS, Loaded, cases, loaded, reason, require_equal

NAMES = sorted(cases())
LEAST = 1500
"""Of the cases of onnx 1.23; another version of onnx has others."""


def imported(name: str) -> list[Loaded] | str:
    """The case as Opstage takes it, or why it does not."""
    try:
        return loaded(cases()[name])
    except UnsupportedError as error:
        why = reason(str(error))
        assert why is not None, f"no reason explains: {error}"
        return why


@pytest.mark.parametrize("backend", ["eager", "compiled"])
@pytest.mark.parametrize("name", NAMES)
def test_values(name: str, backend: str) -> None:
    found = imported(name)
    if isinstance(found, str):
        pytest.skip(found)
    for each in found:
        with np.errstate(all="ignore"):
            try:
                outputs = each.run(backend)
            except UnsupportedError as error:
                assert reason(str(error)) is not None, str(error)
                pytest.skip(str(reason(str(error))))
        if name in DRAWS:
            assert [y.shape for y in outputs] == [y.shape for y, _, _ in each.outputs]
        else:
            require_equal(outputs, each.outputs)


def test_enough_are_imported() -> None:
    """A case that is no longer imported is not passed over in silence."""
    assert sum(not isinstance(imported(name), str) for name in NAMES) >= LEAST


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith("_expanded")])
def test_shapes(name: str) -> None:
    """The shapes that a check infers without data are those of the reference's outputs."""
    found = imported(name)
    if isinstance(found, str):
        pytest.skip(found)
    for each in found:
        specs = [Spec(np.shape(x), None if np.asarray(x).dtype.kind == "f" else _dtype(x)) for x in each.inputs]
        trees = [each.model.params] if each.model.state is None else [each.model.params, each.model.state]

        def program(ops: Any, *args: Any, model: Any = each.model) -> Any:
            result = model(ops, *args)
            return list((result if model.state is None else result[0]).values())

        try:
            graph = opstage.record(program, *trees, *specs, options=Options(dtype=each.dtype))
        except UnsupportedError as error:
            pytest.skip(str(reason(str(error))))
        shapes = [graph.body.types[i].shape for i in graph.body.outputs]
        assert shapes == [y.shape for y, _, _ in each.outputs]


def _dtype(x: Any) -> str:
    dtype = np.asarray(x).dtype
    return dtype.name if dtype in (np.int32, np.bool_) else "int64"


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith("_expanded")])
def test_derivatives(name: str) -> None:
    """Where an output is smooth in a float input, the vjp is that of central differences."""
    found = imported(name)
    if isinstance(found, str) or name in DRAWS:
        pytest.skip(found if isinstance(found, str) else "a draw")
    each = found[0]
    floats = [i for i, x in enumerate(each.inputs) if np.asarray(x).dtype.kind == "f" and np.asarray(x).size]
    if each.model.params or each.model.state is not None or not floats:
        pytest.skip("no float input")
    options = Options(dtype="float64")
    rng = np.random.default_rng(0)
    inputs = [np.asarray(x, np.float64) if i in floats else x for i, x in enumerate(each.inputs)]

    def program(ops: Any, *xs: Any) -> Any:
        outputs = [y for y in each.model(ops, {}, *xs).values() if y.dtype.kind == "f"]
        if not outputs:
            raise UnsupportedError("no float output")
        return outputs[0]

    try:
        with np.errstate(all="ignore"):
            base, pullback = opstage.vjp(program, *inputs, options=options)
            cotangent = rng.standard_normal(np.shape(base))
            gradients = pullback(cotangent)
            direction = [rng.standard_normal(np.shape(x)) if i in floats else None for i, x in enumerate(inputs)]
            slopes = []
            for h in (1e-5, 1e-6):
                moved = [[x if d is None else x + sign * h * d for x, d in zip(inputs, direction)] for sign in (1, -1)]
                high, low = (opstage.run(program, *xs, options=options) for xs in moved)
                slopes += [np.sum(cotangent * (high - base)) / h, np.sum(cotangent * (base - low)) / h]
    except OpstageError as error:
        pytest.skip(f"not differentiable here: {str(error)[:80]}")
    if not np.isfinite(slopes).all() or not np.allclose(slopes, slopes[0], rtol=1e-3, atol=1e-3):
        pytest.skip("not smooth at these inputs")
    along = sum(float(np.sum(g * d)) for g, d in zip(gradients, direction) if d is not None and g is not None)
    np.testing.assert_allclose(along, (slopes[2] + slopes[3]) / 2, rtol=2e-3, atol=2e-3)


# onnx's own cases as source: each that is loaded is written, read again, and gives the same bits ----------------------

GROUPS = 16


def outputs(program: Any, trees: tuple[Any, ...], each: Any) -> list[Any]:
    result = opstage.run(program, *trees, *each.inputs, options=Options(dtype=each.dtype))
    return [np.asarray(x) for x in (result if len(trees) == 1 else result[0]).values()]


@pytest.mark.parametrize("group", range(GROUPS))
def test_sources_give_the_same_bits(group: int, tmp_path: Path) -> None:
    tried = 0
    for name in sorted(cases())[group::GROUPS]:
        try:
            found = loaded(cases()[name])
        except UnsupportedError:
            continue
        for each in found:
            model, path = each.model, tmp_path / f"case_{tried}.py"  # a name of its own: Python keeps bytecode by name
            try:
                write_source(model, path, force=True)
            except UnsupportedError as error:  # as it would be where the model is run
                assert reason(str(error)) is not None, str(error)
                continue
            module = module_of(path)
            theirs = trees_of(module)
            ours = model.trees
            for a, b in zip(outputs(model, ours, each), outputs(module.program, theirs, each), strict=True):
                assert a.dtype == b.dtype and a.tobytes() == b.tobytes(), name
            tried += 1
    assert tried > 60


# What tests/facts/test_onnx_nodes.py says of some of onnx's node tests holds for all others ---------------------------

OTHERS = [name for name in sorted(cases()) if name not in CASES and not name.endswith("_expanded")]


@pytest.mark.parametrize("require", [require_ranges, require_dependence])
@pytest.mark.parametrize("name", OTHERS)
def test_facts_of_outputs_hold(name: str, require: Callable[[Any], None]) -> None:
    require(cases()[name])
