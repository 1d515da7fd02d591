"""Out to ONNX and in again: values and gradients of the program; in and out again: values in onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

import opstage
import opstage.onnx
from opstage import Options
from opstage.interop.onnx.export import model_of
from opstage.ops.trees import flatten, paths
from tests.interop.onnx.models import load
from tests.interop.onnx.programs import ALL, FILES, RNG, WHERE
from tests.interop.onnx.runs import session_of


def close(found: Any, expected: Any, tolerance: float) -> None:
    """Within `tolerance` of the largest element of each."""
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        a, b = np.asarray(a), np.asarray(b)
        assert a.shape == b.shape and a.dtype.kind == b.dtype.kind
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * max(float(np.abs(b).max(initial=0)), 1e-3))


def session_values(proto: Any, inputs: tuple[Any, ...]) -> list[Any]:
    """The outputs in onnxruntime."""
    session = session_of(proto, optimized=True)
    return list(session.run(None, {given.name: x for given, x in zip(session.get_inputs(), inputs)}))


def outputs_of(loaded: Any) -> Callable[..., Any]:
    """The outputs of a loaded model, in the order of the file."""

    def program(ops: Any, trees: Any, *inputs: Any) -> Any:
        result = loaded(ops, *trees, *inputs)
        outputs = result if loaded.state is None else result[0]
        return [outputs[name] for name in loaded.outputs]

    return program


@pytest.mark.parametrize("name", ALL)
def test_out_and_in(name: str) -> None:
    """The loaded program has the values of the one that was exported, and the gradients of its parameters."""
    exported = ALL[name]()
    options = Options(dtype="float64")
    loaded = load(exported.proto("float64"), where=WHERE.get(name, ()))
    assert loaded.check().ok
    again = outputs_of(loaded)
    expected = flatten(opstage.run(exported.program, *exported.trees, *exported.inputs, options=options))[0]
    found = opstage.run(again, loaded.trees, *exported.inputs, options=options)
    close(found, expected, 1e-9)
    weights = [RNG.standard_normal(np.shape(x)) for x in expected]

    def weighed(ops: Any, outputs: Any) -> Any:
        terms = [ops.reduce_sum(y * w) for y, w in zip(outputs, weights) if y.dtype.kind == "f"]
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total

    def original(ops: Any, *args: Any) -> Any:
        return weighed(ops, flatten(exported.program(ops, *args))[0])

    _, one = opstage.value_and_grad(original, *exported.trees, *exported.inputs, options=options)
    _, other = opstage.value_and_grad(
        lambda ops, *args: weighed(ops, again(ops, *args)), loaded.trees, *exported.inputs, options=options
    )
    theirs = dict(zip(paths(exported.trees[0]), flatten(one)[0]))
    ours = {path.removeprefix("params."): gradient for path, gradient in other[0].items()}
    assert theirs.keys() <= ours.keys()
    close([ours[path] for path in theirs], list(theirs.values()), 1e-7)


@pytest.mark.parametrize("name", FILES)
def test_in_and_out(name: str) -> None:
    """A model that comes in and goes out again has its values in onnxruntime, and is one that onnx has nothing to say
    against."""
    proto, inputs = FILES[name]()
    loaded = load(proto, where=WHERE.get(name, ()))
    again = outputs_of(loaded)
    graph = opstage.record(lambda ops, trees, *xs: again(ops, trees, *xs), loaded.trees, *loaded.batch)
    written = model_of(graph, {"trees": loaded.trees})
    onnx.checker.check_model(written, full_check=True)
    cast = tuple(x.astype(np.float32 if x.dtype.kind == "f" else np.int64) for x in inputs)
    close(session_values(written, cast), session_values(proto, cast), 2e-5)
