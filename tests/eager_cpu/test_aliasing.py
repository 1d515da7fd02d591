"""What goes into Opstage is copied, and what comes out is the caller's own: writing there changes nothing inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Aux, Options, Param, ScalarModuleDef, Session, optim, transform
from opstage.init import flat
from opstage.ops.errors import OpstageError, UsageError
from opstage.training.checkpoint import restore, take_snapshot
from opstage.training.parameters import make_params, set_values
from opstage.training.trainer import scalar_trainer

BACKENDS = ["eager", "compiled"]
X = np.array([1.0, -2.0, 3.0])


def options(backend: str) -> Options:
    return Options(backend=backend, dtype="float64", validate=False)


def spoil(tree: Any) -> None:
    """Write nonsense into every array of a tree, where it lets one."""
    for leaf in opstage.ops.trees.flatten(tree)[0]:
        if isinstance(leaf, np.ndarray) and leaf.flags.writeable:
            leaf[...] = -77 if leaf.dtype.kind in "iu" else 1234.5


def loss(ops: Any, params: Any, x: Any) -> Any:
    e = ops.mul(params, x)
    return ops.sum(ops.mul(e, e))


def counted(ops: Any, params: Any, state: Any, x: Any) -> Any:
    """The loss depends on the state; the new state keeps the batch and the parameters themselves."""
    value = ops.add(loss(ops, params, x), ops.sum(ops.mul(state["last"], params)))
    metrics = {"x": x, "params": params, "state": state["last"]}
    return value, Aux(state={"last": x, "params": params}, metrics=metrics)


def stateful(backend: str, last: Any = None) -> Any:
    state = {"last": np.zeros(3) if last is None else last, "params": np.zeros(3)}
    return scalar_trainer(counted, np.ones(3), options=options(backend), state=state)


# Trainers: a run in which all that goes in or comes out is spoilt is the run in which nothing is ---------------------


def steps(backend: str, mess: Callable[[Any], None]) -> list[Any]:
    """Every method of a trainer with state, several times over; `mess` gets all that went in or came out."""
    start, last = np.ones(3), X / 2
    state = {"last": last, "params": np.zeros(3)}
    t = scalar_trainer(counted, start, options=options(backend), state=state)
    mess((start, state))
    seen: list[Any] = []
    adam = optim.adam(lr=0.1)
    held = t.init_optim(adam)
    for turn in range(3):
        x = X + turn
        values: list[Any] = [t.step(0.01, x), dict(t.last_metrics)]
        mess(x)
        x = X - turn
        values += [t.adam_step(0.1, 0.9, 0.999, 1e-8, x)]
        mess(x)
        x = X * 2
        result = t.train_step(adam, held, x)
        held = result.state
        values += [result.loss, dict(result.metrics), held.slots]
        mess(x)
        x = X / 3
        result = t.advance(adam, held, x)
        values += [result.loss, dict(result.metrics), held.slots]
        mess(x)
        x = X.copy()
        values += [t.forward(x), t.backward(x), t.loss_and_backward(x), t.evaluate(lambda ops, p, s, x: (p, s, x), x)]
        mess(x)
        values += [t.get_params(), t.state, t.export(), t.export_optim(adam, held)]
        seen += opstage.ops.trees.flatten([np.array(v) for v in opstage.ops.trees.flatten(_plain(values))[0]])[0]
        mess(_plain(values))
        new = {"last": X + 0.5, "params": np.ones(3)}
        t.set_state(new)
        mess(new)
        put = t.get_params() + 0.25
        t.set_params(put)
        mess(put)
        saved = take_snapshot(t, adam, held)
        resumed = restore(t, saved, adam)
        mess(_plain([saved.trainer, saved.optimizer]))
        assert resumed is not None
        held = resumed
    return seen


def _plain(tree: Any) -> Any:
    """Dataclasses of arrays as dictionaries of them."""
    if isinstance(tree, (list, tuple)):
        return [_plain(each) for each in tree]
    if isinstance(tree, dict) or hasattr(tree, "keys"):
        return {str(key): _plain(value) for key, value in tree.items()}
    if hasattr(tree, "__dataclass_fields__"):
        return {name: _plain(getattr(tree, name)) for name in tree.__dataclass_fields__ if name not in ("name",)}
    return tree


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_trainer_shares_nothing(backend: str) -> None:
    left_alone, spoilt = steps(backend, lambda tree: None), steps(backend, spoil)
    assert len(left_alone) == len(spoilt) > 60
    for a, b in zip(left_alone, spoilt):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_state_is_not_written_over_by_steps(backend: str) -> None:
    """It holds the parameters of the step before; those of the next may be made in their memory."""
    t = stateful(backend)
    for turn in range(4):
        before = t.get_params()
        t.adam_step(0.1, 0.9, 0.999, 1e-8, X + turn)
        np.testing.assert_array_equal(t.state["params"], before)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_new_state_must_fit(backend: str) -> None:
    t = stateful(backend)
    for wrong in ({"last": np.zeros(4), "params": np.zeros(3)}, {"last": np.zeros(3, bool), "params": np.zeros(3)}):
        with pytest.raises(UsageError, match=r"last: expected \(3,\) float64, found"):
            t.set_state(wrong)
    with pytest.raises(OpstageError, match="state"):
        t.set_state({"last": np.zeros(3)})
    np.testing.assert_array_equal(t.state["last"], np.zeros(3))
    t.set_state({"last": np.arange(1, 4), "params": np.zeros(3)})
    assert t.state["last"].tolist() == [1.0, 2.0, 3.0] and t.state["last"].dtype == np.float64


@pytest.mark.parametrize("backend", BACKENDS)
def test_modules(backend: str) -> None:
    runs = []
    for mess in (lambda tree: None, spoil):
        init, samples = np.ones(3), [(X.copy(),), (X + 1,)]
        definition = ScalarModuleDef(init, loss)
        made = definition.instantiate(options(backend))
        mess(init)
        state = made.train_with(optim.adam(lr=0.1), made.init_optim(optim.adam(lr=0.1)), 3, samples, log_every=0)
        mess([state.slots, made.params()])
        made.train_sgd(0.01, 2, samples, log_every=0)
        mess(samples)
        runs.append((made.params(), made.mean_loss([(X,)])))
    np.testing.assert_array_equal(runs[0][0], runs[1][0])
    assert runs[0][1] == runs[1][1]


# Params and initialisers ---------------------------------------------------------------------------------------------


def test_params() -> None:
    given, later = np.ones(3), np.full(3, 2.0)
    p = Param(given, dtype="float64")
    spoil(given)
    assert p.value.tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="read-only"):
        p.value[...] = 5
    seen = p.value
    p.set(later)
    spoil(later)
    assert p.value.tolist() == [2, 2, 2] and seen.tolist() == [1, 1, 1]
    tree = make_params({"w": (values := np.ones(2))}, options=Options(dtype="float64"))
    spoil(values)
    new = {"w": np.zeros(2)}
    assert tree["w"].value.tolist() == [1, 1]
    set_values(tree, new)
    spoil(new)
    assert tree["w"].value.tolist() == [0, 0]


def test_initialisers() -> None:
    values = np.arange(4.0)
    initialiser = flat(values)
    spoil(values)
    assert initialiser.materialise((4,), np.dtype(np.float64)).tolist() == [0, 1, 2, 3]
    spoil(initialiser.materialise((4,), np.dtype(np.float64)))
    assert initialiser.materialise((4,), np.dtype(np.float64)).tolist() == [0, 1, 2, 3]


# Sessions ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_session_shares_nothing(backend: str) -> None:
    runs = []
    for mess in (lambda tree: None, spoil):
        s = Session(options(backend))
        seen: list[Any] = []
        given = np.ones(3)
        w = s.param(given, name="w")
        mess(given)
        for turn in range(3):
            arrays = {name: X + turn + i for i, name in enumerate(("input", "leaf", "const", "tangent"))}
            indices = np.array([0, 2, 1])
            use, x, y = s.use(w), s.input(arrays["input"]), s.leaf(arrays["leaf"])
            n, k = s.nat_vec(indices), s.nat(1)
            c = s.const(arrays["const"])
            mess([arrays["input"], arrays["leaf"], arrays["const"], indices])
            rows = s.gather_vec(s.mul(s.mul(use, x), s.mul(y, c)), n)
            total = s.add(s.sum(s.mul(rows, rows)), s.sum(s.gather_vec(y, k)))
            more = np.array([2, 1, 0])
            if backend == "compiled":
                s.set_nat_vec(n, more)
                mess(more)
            seed = np.array(2.0)
            s.backward(total, seed=seed)
            mess(seed)
            out = [s.get_value(total), s.get_value(rows), s.grad(use), s.grad(y), s.get_nat_vec(n)]
            out += [s.jvp_leaf(total, y, arrays["tangent"])]
            seen += [np.array(v) for v in out]
            mess([out, arrays["tangent"]])
            seen += [np.array(v) for v in (s.get_value(total), s.get_value(rows), s.grad(use), s.get_nat_vec(n))]
            s.adam_step_all(0.1)
            s.reset_tape()
            seen += [np.array(w.value)]
        runs.append(seen)
    for a, b in zip(*runs, strict=True):
        np.testing.assert_array_equal(a, b)


# Functions of programs -----------------------------------------------------------------------------------------------


def product(ops: Any, x: Any, w: Any) -> Any:
    return ops.mul(ops.mul(x, w), w)


@pytest.mark.parametrize("backend", BACKENDS)
def test_functions_share_nothing(backend: str) -> None:
    o = options(backend)
    x, w = X.copy(), X + 1
    same = opstage.run(lambda ops, x: (x, x, ops.reshape(x, shape=(3, 1)), ops.detach(x)), x, options=o)
    spoil(same[0])
    assert x.tolist() == X.tolist() and same[1].tolist() == X.tolist() and same[2].ravel().tolist() == X.tolist()
    spoil(same)
    assert x.tolist() == X.tolist()
    value, pullback = opstage.vjp(product, x, w, options=o)
    expected = pullback(np.ones(3))
    spoil([value, x, w])
    got = pullback(np.ones(3))
    spoil(expected)
    again = pullback(np.ones(3))
    for a, b, c in zip(got, again, ((X + 1) ** 2, 2 * X * (X + 1))):
        np.testing.assert_allclose(a, c)
        np.testing.assert_array_equal(a, b)
    x, w = X.copy(), X + 1
    made = opstage.compile(lambda ops, x, w: ops.sum(product(ops, x, w)), x, w, options=Options(dtype="float64"))
    _, pullback = made.vjp(x, w)
    before = [np.array(g) for g in pullback(np.float64(1.0))]
    grads = made.backward(x, w)  # type: ignore[union-attr]
    spoil([grads, x, w])
    for a, b in zip(pullback(np.float64(1.0)), before):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_pullback_of_array_likes_keeps_what_they_were(backend: str) -> None:
    class Like:
        """What NumPy takes for an array, as tensors of other libraries."""

        def __init__(self) -> None:
            self.held = X.copy()

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return self.held.copy() if copy else self.held

    like = Like()
    _, pullback = opstage.vjp(lambda ops, x: ops.mul(x, x), like, options=options(backend))
    spoil(like.held)
    np.testing.assert_allclose(pullback(np.ones(3))[0], 2 * X)
    like = Like()
    t = scalar_trainer(loss, like, options=options(backend))
    spoil(like.held)
    np.testing.assert_array_equal(t.get_params(), X)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_are_arrays_of_their_own(backend: str) -> None:
    """Where the rules give one array to two operands, or an operand itself."""
    x, w = X.copy(), X + 1
    _, (dx, dw, db) = opstage.value_and_grad(
        lambda ops, x, w, b: ops.sum(ops.add(ops.add(ops.mul(x, w), b), x)),
        x,
        w,
        X.copy(),
        wrt=(0, 1, 2),
        options=options(backend),
    )
    spoil(dx)
    spoil(dw)
    np.testing.assert_array_equal(db, np.ones(3))
    assert x.tolist() == X.tolist() and w.tolist() == (X + 1).tolist()


def test_a_graph_keeps_its_constants() -> None:
    held = X.copy()
    graph = opstage.record(lambda ops, x: ops.mul(x, ops.const(held)), X, options=Options(dtype="float64"))
    before = str(graph)
    spoil(held)
    for constant in graph.body.constants:
        with pytest.raises(ValueError, match="read-only"):
            constant.value[...] = 0
    assert str(graph) == before
    assert transform is not None
