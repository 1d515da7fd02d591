"""Quick calls of compiled predictions: they answer as the slow ones do, whatever has changed between two of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Declaration, Model, Options, Spec, init
from opstage.models import MODELS, cnn, mlp, model, resnet
from opstage.ops.derived import dropout
from opstage.training.predictor import Predictor

COMPILED = Options(backend="compiled", validate=False)
FACTOR = {"by": 2.0}


def predictor(made: Model, options: Options = COMPILED) -> Predictor:
    state = None if made.state is None else init.build(made.state)
    return Predictor(made, opstage.scalar_trainer(made.loss, init.build(made.init), options=options, state=state))


def line(outputs: Callable[..., Any]) -> Model:
    def loss(ops: Any, params: Any, x: Any) -> Any:
        return ops.sum(ops.mul(x, x))

    parameters = {"w": Declaration((3, 2), init.kaiming_uniform())}
    return Model("line", None, parameters, loss, None, (Spec("B 2"),), outputs=outputs)


def linear(ops: Any, params: Any, x: Any) -> Any:
    return {"z": ops.linear(params["w"], None, x), "best": ops.argmax(x, axis=1)}


def is_quick(p: Predictor) -> bool:
    return bool(p._prepared)


@pytest.mark.parametrize(
    "made",
    [
        model("mlp", mlp.Config(hidden=(8,))),
        model("cnn", cnn.Config(channels=(4,), dense=8)),
        model("resnet", resnet.Config(channels=(4,), blocks=1)),
    ],
    ids=lambda made: made.name,
)
def test_it_answers_as_the_first_call_did(made: Model) -> None:
    p, rng = predictor(made), np.random.default_rng(0)
    for rows in (1, 3, 1, 2, 3):
        x = rng.random((rows, 1, 8, 8), np.float32)
        slow = predictor(made)(x)
        for _ in range(3):
            found = p(x)
            assert all(np.array_equal(found[name], slow[name]) for name in slow), rows
            for value in found.values():
                value[...] = 0  # its memory is the caller's own
    assert is_quick(p)


def test_it_sees_parameters_and_state_as_they_are() -> None:
    p = predictor(model("resnet", resnet.Config(channels=(4,), blocks=1)))
    x = np.random.default_rng(0).random((2, 1, 8, 8), np.float32)
    state = p._trainer.init_optim(opstage.optim.sgd(lr=0.1))
    seen = []
    for _ in range(4):
        p(x)
        quick, slow = p(x)["probabilities"], p._trainer.evaluate(p.model.outputs, x)["probabilities"]
        assert np.array_equal(quick, slow)
        seen.append(quick.tobytes())
        p._trainer.advance(opstage.optim.sgd(lr=0.1), state, x, np.array([1, 2]))
    assert len(set(seen)) == 4
    p._trainer.set_params(init.build(p.model.init, seed=7))
    assert np.array_equal(p(x)["probabilities"], p._trainer.evaluate(p.model.outputs, x)["probabilities"])


def test_it_sees_what_the_program_reads() -> None:
    p = predictor(line(lambda ops, params, x: ops.scale(x, c=FACTOR["by"])))
    x = np.ones((1, 2), np.float32)
    assert p(x).tolist() == p(x).tolist() == [[2, 2]]
    FACTOR["by"] = 3.0
    try:
        assert p(x).tolist() == [[3, 3]]
    finally:
        FACTOR["by"] = 2.0
    assert p(x).tolist() == [[2, 2]]


@pytest.mark.parametrize(
    "x",
    [
        np.ones((2, 4), np.float32)[:, ::2],
        np.asfortranarray(np.arange(4, dtype=np.float32).reshape(2, 2)),
        np.arange(4).reshape(2, 2),
        [[0, 1], [2, 3]],
    ],
    ids=["strided", "columns", "integers", "list"],
)
def test_arrays_of_other_forms_go_the_slow_way(x: Any) -> None:
    p = predictor(line(linear))
    for _ in range(2):
        p(np.zeros((2, 2), np.float32))
    assert is_quick(p)
    w = p._trainer.get_params()["w"]
    assert np.allclose(p(x)["z"], np.asarray(x) @ w.T, rtol=1e-6)
    assert p(x)["best"].tolist() == np.asarray(x).argmax(axis=1).tolist()


@pytest.mark.parametrize("kind", ["float64", "float16"])
def test_other_floats_are_rounded_and_quick(kind: str) -> None:
    p, x = predictor(line(linear)), np.random.default_rng(0).random((4, 2)).astype(kind)
    slow = p(x)
    assert is_quick(p)
    for given in (x, x.astype("float32")):
        rounded = p._rounded([given])
        assert rounded is not None and p._quick(rounded) is not None
        assert all(np.array_equal(p(given)[name], slow[name]) for name in slow)


def test_what_is_not_all_machine_code_is_not_quick() -> None:
    x = np.ones((2, 2), np.float32)
    drawing = predictor(line(lambda ops, params, x: dropout(ops, x, p=0.5, train=True)))
    assert np.array_equal(drawing(x), drawing(x)) and not is_quick(drawing)
    for options in (Options(validate=False), COMPILED.replace(detect_anomaly=True)):
        watched = predictor(line(linear), options)
        watched(x), watched(x)
        assert not is_quick(watched)
    twice = predictor(line(lambda ops, params, x: (lambda y: {"a": y, "b": y})(ops.neg(x))))
    first, second = twice(x), twice(x)
    first["a"][...] = 9
    assert second["b"].tolist() == twice(x)["b"].tolist() == [[-1, -1], [-1, -1]]


def test_an_anomaly_and_a_bad_index_are_the_errors_that_they_were() -> None:
    table = Model(
        "table", None, {"t": Declaration((4, 2), init.ones)}, lambda ops, p, i: ops.sum(ops.gather_rows(p["t"], i)),
        None, (Spec("B", dtype="int64"),), outputs=lambda ops, p, i: ops.gather_rows(p["t"], i),
    )  # fmt: skip
    p = predictor(table)
    for _ in range(3):
        assert p(np.array([0, 3])).shape == (2, 2)
    assert is_quick(p)
    for _ in range(2):
        with pytest.raises(opstage.RangeError, match="4"):
            p(np.array([0, 4]))
    assert p(np.array([1, 2])).tolist() == [[1, 1], [1, 1]]


def test_threads_get_their_own_answers() -> None:
    p = predictor(line(linear))
    w = p._trainer.get_params()["w"]
    p(np.zeros((1, 2), np.float32))
    wrong: list[Any] = []

    def ask(start: int) -> None:
        for i in range(start, start + 300):
            x = np.array([[i, -i]], np.float32)
            if not np.allclose(p(x)["z"], x @ w.T, rtol=1e-5):
                wrong.append(i)

    threads = [threading.Thread(target=ask, args=(1000 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_every_shipped_model_predicts() -> None:
    rng = np.random.default_rng(0)
    for name in MODELS:
        made = model(name)
        p = predictor(made)
        arrays = []
        for type_ in p.types:
            shape = tuple(dim if isinstance(dim, int) else 2 for dim in type_.shape)
            arrays.append(rng.integers(0, 9, shape) if type_.dtype.kind == "i" else rng.random(shape, np.float32))
        first, second = p(*arrays), p(*arrays)
        assert all(np.array_equal(first[key], second[key]) and np.isfinite(first[key]).all() for key in first), name
