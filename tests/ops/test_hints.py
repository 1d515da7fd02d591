"""A missing key of the parameters names the keys, and a keyword of PyTorch's the op's own; the error itself stays."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Spec
from opstage.ops.errors import OpstageError

torch: Any = ModuleType("torch")  # as it refuses what is not a tensor of its own
exec(compile("def cat(x): raise TypeError(f'must be Tensor, not {type(x).__name__}')", "<torch>", "exec"), vars(torch))

PARAMS = {"dense": {"weight": np.ones((2, 3)), "bias": np.ones(2)}, "scale": np.ones(())}


def misspelt(ops: Any, params: Any, x: Any) -> Any:
    return ops.sum(ops.linear(params["dense"]["wieght"], params["dense"]["bias"], x))


def outermost(ops: Any, params: Any, x: Any) -> Any:
    return ops.sum(x) * params["scal"]


def beyond(ops: Any, params: Any, x: Any) -> Any:
    layers = [params["dense"], params["dense"]]
    return ops.sum(ops.linear(layers[2]["weight"], layers[2]["bias"], x))


CASES: list[tuple[Callable[..., Any], type[Exception], str]] = [
    (misspelt, KeyError, "params['dense'] does not have the key 'wieght' (did you mean 'weight'?); its keys are"),
    (outermost, KeyError, "params does not have the key 'scal' (did you mean 'scale'?); its keys are"),
    (lambda ops, p, x: ops.reduce_mean(x, dim=0), TypeError, "Opstage calls it axis=: ops.reduce_mean takes axis="),
    (lambda ops, p, x: ops.reduce_sum(x, axis=0, keepdim=True), TypeError, "Opstage calls it keepdims="),
    (lambda ops, p, x: ops.softmax(x, dim=-1), TypeError, "Opstage calls it axis="),
    (lambda ops, p, x: ops.sum(x, dim=-1), TypeError, "ops.reduce_sum(x, axis=…, keepdims=…)"),
    (lambda ops, p, x: ops.softmax(x, 1), TypeError, "by keyword: ops.softmax(x, axis=…)"),
    (lambda ops, p, x: ops.reduce_sum(x, 1), TypeError, "by keyword: ops.reduce_sum(x, axis=…, keepdims=…)"),
    (lambda ops, p, x: ops.reshape(x, 3, -1), TypeError, "by keyword: ops.reshape(x, shape=…)"),
    (lambda ops, p, x: ops.concat([x, x], 0), TypeError, "by keyword: ops.concat(xs, axis=…)"),
    (lambda ops, p, x: ops.sum(x, 1), TypeError, "along axes it is ops.reduce_sum"),
    (lambda ops, p, x: ops.relu(x, True), TypeError, "ops.relu takes x"),
    (beyond, IndexError, "layers has 2 entries, layers[0] … layers[1]"),
    (lambda ops, p, x: ops.full(shpe=(2,), value=0.0), TypeError, "ops.full takes shape=, value=, dtype="),
]


@pytest.mark.parametrize(("program", "error", "hint"), CASES, ids=[case[2] for case in CASES])
def test_the_error_carries_a_hint(program: Any, error: type[Exception], hint: str) -> None:
    x = np.ones((4, 3))
    for options in (Options(), Options(backend="compiled")):
        with pytest.raises(error) as caught:
            opstage.run(program, PARAMS, x, options=options)
        assert type(caught.value) is error
        (note,) = caught.value.__notes__
        assert hint in note
    with pytest.raises(error) as caught:
        opstage.value_and_grad(program, PARAMS, x)
    assert hint in caught.value.__notes__[0]
    (finding,) = opstage.check(program, PARAMS, Spec("B 3")).errors
    assert hint in finding.reason


FOREIGN: list[tuple[Callable[[Any, Any], Any], str]] = [
    (lambda ops, x: np.tanh(x), "np.tanh does not support refs: it is ops.tanh"),
    (lambda ops, x: x * np.exp(x + 1), "np.exp does not support refs: it is ops.exp"),
    (lambda ops, x: np.maximum(0, x), "np.maximum does not support refs: it is ops.maximum"),
    (
        lambda ops, x: np.concatenate([x, x], axis=0),
        "np.concatenate does not support refs: Opstage calls it ops.concat([x, y]",
    ),
    (lambda ops, x: np.mean(x, axis=0), "np.mean does not support refs: Opstage calls it ops.reduce_mean(x)"),
    (lambda ops, x: np.sum(x), "np.sum does not support refs: it is ops.sum"),
    (lambda ops, x: np.asarray(x), "np.asarray does not support refs: a ref is a tensor already"),
    (lambda ops, x: np.linalg.eig(x), "np.linalg.eig does not support refs: tensors are computed with by ops"),
    (lambda ops, x: math.exp(ops.sum(x)), "math.exp does not support refs: it is ops.exp"),
    (lambda ops, x: torch.cat(x), "torch.cat does not support refs: Opstage calls it ops.concat([x, y], axis=0)"),
    (lambda ops, x: max(x, 0), "max(…) does not support refs: the larger of two is ops.maximum(x, y)"),
    (lambda ops, x: sum(x), "sum(…) does not support refs: the sum of all elements is ops.sum(x)"),
    (lambda ops, x: int(ops.sum(x)), "int(…) does not support refs: another dtype is ops.cast"),
]


@pytest.mark.parametrize(("program", "hint"), FOREIGN, ids=[case[1].partition(" ")[0] for case in FOREIGN])
def test_functions_of_others_name_the_op(program: Any, hint: str) -> None:
    x = np.ones((2, 2))
    for do in (
        lambda: opstage.run(program, x),
        lambda: opstage.run(program, x, options=Options(backend="compiled")),
        lambda: opstage.jvp(program, (x,), (x,)),
        lambda: opstage.value_and_grad(lambda ops, x: ops.scan(lambda ops, c, row: (program(ops, c), row), x, x), x),
    ):
        with pytest.raises(TypeError) as caught:
            do()
        (note,) = caught.value.__notes__
        assert note.startswith(hint)
    (finding,) = opstage.check(program, Spec("B B")).errors
    assert hint in finding.reason


def test_operators_of_polars_name_the_array() -> None:
    series = pytest.importorskip("polars").Series([1.0, 2.0])
    programs: list[Callable[[Any, Any], Any]] = [lambda ops, x: series + x, lambda ops, x: x * 2 * (series <= x)]
    for program in programs:
        with pytest.raises(TypeError) as caught:
            opstage.run(program, np.ones(2))
        assert caught.value.__notes__ == ["series does not support refs in its operators: write np.asarray(series)"]
    with pytest.raises(TypeError, match="unsupported operand") as other:
        opstage.run(lambda ops, x: 3 << x, np.ones(2))
    assert not hasattr(other.value, "__notes__")


def test_functions_of_numpy_name_the_op_for_refs_of_a_session() -> None:
    session = opstage.Session()
    x, ones = session.const(np.ones((2, 2), np.float32)), np.ones((2, 2), np.float32)
    calls = {"exp": lambda: np.exp(x), "maximum": lambda: np.maximum(0, x), "add": lambda: np.add(x, 1)}
    for name, call in {**calls, "sum": lambda: np.sum(x), "multiply": lambda: ones.__imul__(x)}.items():
        ours = "Opstage calls it" if name == "multiply" else f"it is ops.{name}, a method of the session"
        with pytest.raises(TypeError, match=f"^np.{name} does not support refs: {ours}"):
            call()
    for found, value in ((3 * ones - x, 2.0), (np.float64(3.0) / x, 3.0), (ones @ x, 2.0), (ones < x, 0.0)):
        assert (session.get_value(found) == value).all()


def test_a_trainer_says_so_too() -> None:
    trainer = opstage.scalar_trainer(misspelt, PARAMS)
    with pytest.raises(Exception, match="did you mean 'weight'"):
        trainer.step(0.1, np.ones((4, 3)))


def test_other_errors_are_left_alone() -> None:
    with pytest.raises(KeyError) as caught:
        opstage.run(lambda ops, x: {"a": 1}[("b", len(x.shape))[0]], np.ones(3))
    assert caught.value.args == ("b",) and not hasattr(caught.value, "__notes__")
    with pytest.raises(TypeError) as other:
        opstage.run(lambda ops, x: len(3), np.ones(3))  # type: ignore[arg-type]
    assert not hasattr(other.value, "__notes__")
    for program in (lambda ops, x: math.exp("x"), lambda ops, x: ops.exp(3), lambda ops, x: x if x else -x):
        with pytest.raises(TypeError) as other:
            opstage.run(program, np.ones(3))  # type: ignore[arg-type]
        assert not hasattr(other.value, "__notes__")


SWAPPED: list[tuple[Callable[..., Any], str]] = [
    (lambda ops, w, b, x: ops.linear(x, w, b), "weight (4, 3), bias (4,), x (5, 3)"),
    (lambda ops, w, b, x: ops.linear(w, x, b), "weight (4, 3), bias (4,), x (5, 3)"),
    (lambda ops, w, b, x: ops.cross_entropy(ops.iota(shape=(5,)), x), "logits (5, 3), labels (5,)"),
    (lambda ops, w, b, x: ops.gather_rows(ops.iota(shape=(2,)), x), "x (5, 3), idx (2,)"),
    (lambda ops, w, b, x: ops.rms_norm(w[0], x), "x (5, 3), gamma (3,)"),
]


@pytest.mark.parametrize(("program", "order"), SWAPPED, ids=[case[1] for case in SWAPPED])
def test_operands_in_another_order_are_named(program: Any, order: str) -> None:
    arrays = np.ones((4, 3)), np.ones(4), np.ones((5, 3))
    for backend in ("eager", "compiled", "shape_check"):
        with pytest.raises(OpstageError) as caught:
            opstage.run(program, *arrays, options=Options(backend=backend))  # type: ignore[arg-type]
        assert f"in this order: they would fit as {order}" in str(caught.value)


def test_another_order_is_named_only_where_one_fits() -> None:
    for program in (
        lambda ops, w, b, x: ops.matmul(w, x),  # x and y have no roles
        lambda ops, w, b, x: ops.linear(x, b, ops.transpose2d(w)),  # no order fits
    ):
        with pytest.raises(OpstageError) as caught:
            opstage.run(program, np.ones((4, 3)), np.ones(4), np.ones((5, 4)))
        assert "in this order" not in str(caught.value)
