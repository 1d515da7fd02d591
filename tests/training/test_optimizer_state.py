"""An optimizer's state is taken by that optimizer, on those parameters, and by no other; copies are its equals."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opstage import Options, ScalarModuleDef, Session, optim
from opstage.ops.errors import ProgramError, UsageError
from opstage.optim import Optimizer
from opstage.training.checkpoint import load, restore, save, take_snapshot
from opstage.training.state import OptimizerState
from opstage.training.trainer import ScalarTrainer, scalar_trainer

BACKENDS = ["eager", "compiled"]
X = np.array([[1.0, -2.0, 0.5], [0.25, 1.0, -1.0]])

MATRICES = {"w": np.arange(6.0).reshape(2, 3) / 10, "u": np.ones((3, 3)) / 3}
MIXED = {"w": np.arange(6.0).reshape(2, 3) / 10, "b": np.array([0.1, -0.2])}

OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": optim.sgd(0.1),
    "momentum": optim.momentum(0.1),
    "momentum 0": optim.momentum(0.1, momentum=0.0),
    "nesterov": optim.nesterov(0.1),
    "adagrad": optim.adagrad(0.1),
    "rmsprop": optim.rmsprop(0.1),
    "adam": optim.adam(0.1),
    "adamw": optim.adamw(0.1),
    "adadelta": optim.adadelta(0.1),
    "muon": optim.muon(0.1),
    "muon, adam": optim.muon(0.1, others=optim.adam(0.1)),
    "muon, adamw": optim.muon(0.1, others=optim.adamw(0.1)),
}
SAME = {("momentum", "momentum 0"), ("momentum 0", "momentum")}  # hyperparameters that leave the velocity what it is


def square(ops: Any, params: Any, x: Any) -> Any:
    total = ops.full(shape=(), value=0.0)
    for name in sorted(params):
        total = ops.add(total, ops.sum(ops.mul(params[name], params[name])))
    return ops.mul(total, ops.sum(ops.mul(x, x)))


def trainer(params: Any = MATRICES, backend: str = "eager", dtype: str = "float64", **how: Any) -> ScalarTrainer:
    return scalar_trainer(square, params, options=Options(backend=backend, dtype=dtype, validate=False), **how)


ROADS: dict[str, Callable[[ScalarTrainer, Optimizer, Any], Any]] = {
    "step_with": lambda t, optimizer, state: t.step_with(optimizer, state, X),
    "train_step": lambda t, optimizer, state: t.train_step(optimizer, state, X),
    "advance": lambda t, optimizer, state: t.advance(optimizer, state, X),
    "export_optim": lambda t, optimizer, state: t.export_optim(optimizer, state),
    "take_snapshot": lambda t, optimizer, state: take_snapshot(t, optimizer, state),
}


def refused(t: ScalarTrainer, optimizer: Optimizer, state: Any, message: str) -> None:
    """By every method that takes a state, and nothing has changed after it."""
    before, count = t.get_params(), t.steps_taken
    for road, take in ROADS.items():
        with pytest.raises(UsageError, match=message):
            take(t, optimizer, state)
            pytest.fail(road)
    after = t.get_params()
    assert t.steps_taken == count and all(np.array_equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("taker", OPTIMIZERS)
def test_a_state_of_another_optimizer_is_refused(taker: str) -> None:
    t, optimizer = trainer(), OPTIMIZERS[taker]
    for maker in OPTIMIZERS:
        state = t.step_with(OPTIMIZERS[maker], t.init_optim(OPTIMIZERS[maker]), X)
        if maker == taker or (maker, taker) in SAME:
            assert t.step_with(optimizer, state, X).t == 2
        else:
            refused(t, optimizer, state, r"the optimizer state is that of .*, but the optimizer is .*init_optim")


@pytest.mark.parametrize("backend", BACKENDS)
def test_other_hyperparameters_go_on_from_a_state(backend: str) -> None:
    """Rate, schedule, decay and betas may change from step to step, as in PyTorch."""
    t = trainer(backend=backend)
    state = t.init_optim(optim.adam(0.1))
    for optimizer in (
        optim.adam(optim.schedule.cosine(0.1, 10)),
        optim.adam(1e-3, betas=(0.8, 0.99)),
        optim.adam(1e-3, weight_decay=0.1, eps=1e-6),
    ):
        state = t.step_with(optimizer, state, X)
    assert state.t == 3


class Averaged(Optimizer):
    """An optimizer of somebody's own, whose slots depend on a hyperparameter."""

    def __init__(self, lr: float, averages: int):
        object.__setattr__(self, "lr", lr)
        object.__setattr__(self, "averages", averages)

    @property
    def program_key(self) -> Any:  # type: ignore[override]
        return (Averaged, self.averages)  # type: ignore[attr-defined]

    def slots(self, shape: Any, dtype: Any, label: str) -> Any:
        return (optim.Slot(shape, dtype, 0.0),) * self.averages  # type: ignore[attr-defined]

    def update(self, ops: Any, p: Any, g: Any, slots: Any, scalars: Any, /) -> Any:
        return ops.sub(p, ops.mul(g, ops.broadcast_to(scalars["lr"], shape=p.shape))), slots


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_own_scalars_are_added_to_the_learning_rate(grouped: bool, backend: str) -> None:
    """A decaying optimizer: p - lr·g/t, by a scalar of its own."""

    class Decaying(Averaged):
        def scalars(self, t: int) -> dict[str, float]:
            return {"share": 1.0 / t}

        def update(self, ops: Any, p: Any, g: Any, slots: Any, scalars: Any, /) -> Any:
            rate = ops.mul(scalars["lr"], scalars["share"])
            return ops.sub(p, ops.mul(g, ops.broadcast_to(rate, shape=p.shape))), slots

    optimizer: Optimizer = Decaying(0.1, 0)
    assert optimizer.step_scalars(4) == {"lr": 0.1, "share": 0.25}
    if grouped:
        optimizer = optim.grouped(optimizer, {"u": Decaying(0.1, 0)})
    ours, plain = (
        scalar_trainer(lambda ops, p, x: ops.sum(p["w"] * x), {"w": np.ones(2), "u": np.ones(1)}, options=options)
        for options in (Options(dtype="float64", backend=backend, validate=False),) * 2
    )
    state, x = ours.init_optim(optimizer), np.array([1.0, 2.0])
    for t in (1, 2, 3):
        state = ours.step_with(optimizer, state, x)
        plain.step(0.1 / t, x)
    np.testing.assert_allclose(ours.get_params()["w"], plain.get_params()["w"], rtol=1e-12)


def test_hyperparameters_that_shape_the_state() -> None:
    t = trainer()
    refused(t, Averaged(0.1, 2), t.init_optim(Averaged(0.1, 1)), "has 1 slots for u that are not the 2")


@pytest.mark.parametrize("given", [0, 1, 3])
def test_an_update_gives_as_many_slots_as_are_declared(given: int) -> None:
    class Another(Averaged):
        def update(self, ops: Any, p: Any, g: Any, slots: Any, scalars: Any, /) -> Any:
            return p, [slots[0]] * given

    t = trainer()
    before, state = t.get_params(), t.init_optim(Another(0.1, 2))
    with pytest.raises(ProgramError, match=f"another gives {given} new slots for u, for which it declares 2"):
        t.step_with(Another(0.1, 2), state, X)
    assert all(map(np.array_equal, t.get_params().values(), before.values()))


OTHER_PARAMETERS: dict[str, tuple[Callable[[], ScalarTrainer], str]] = {
    "a name": (lambda: trainer({"w": MATRICES["w"], "v": MATRICES["u"]}), r"u is missing.*\n.*v is not expected"),
    "a shape": (lambda: trainer({"w": np.zeros((3, 2)), "u": MATRICES["u"]}), r"w: expected \(2, 3\).*found \(3, 2\)"),
    "a dtype": (lambda: trainer(dtype="float32"), r"w: expected \(2, 3\) float64, found \(2, 3\) float32"),
    "one more": (lambda: trainer({**MATRICES, "c": np.zeros((2, 2))}), "c is not expected"),
    "one less": (lambda: trainer({"w": MATRICES["w"]}), "u is missing"),
    "frozen": (lambda: trainer(requires_grad={"w": True, "u": False}), "u is missing"),
    "a list": (lambda: scalar_trainer(lambda ops, p, x: ops.sum(p[0]), list(MATRICES.values())), "w is missing"),
}


@pytest.mark.parametrize("case", OTHER_PARAMETERS)
@pytest.mark.parametrize("optimizer", [optim.sgd(0.1), optim.adam(0.1)], ids=lambda o: o.name)
def test_a_state_of_other_parameters_is_refused(optimizer: Optimizer, case: str) -> None:
    make, message = OTHER_PARAMETERS[case]
    refused(trainer(), optimizer, make().init_optim(optimizer), f"(?s)do not fit:.*{message}")


def test_shapes_that_are_exchanged_are_refused() -> None:
    """Two parameters of one shape: their moments must not change places with their names."""
    a = trainer(OrderedDict(w=np.zeros((2, 3)), u=np.ones((2, 3))))
    b = trainer(OrderedDict(u=np.zeros((2, 3)), w=np.ones((2, 3))))
    state = a.init_optim(optim.adam(0.1))
    refused(b, optim.adam(0.1), state, "in another order")


@pytest.mark.parametrize("backend", BACKENDS)
def test_freezing_a_parameter_ends_its_state(backend: str) -> None:
    t = trainer(backend=backend)
    state = t.step_with(optim.adam(0.1), t.init_optim(optim.adam(0.1)), X)
    t.adam_step(0.1, 0.9, 0.999, 1e-8, X)
    t.params["u"].requires_grad = False
    refused(t, optim.adam(0.1), state, r"u is not expected")
    with pytest.raises(UsageError, match=r"(?s)adam_step keeps moments.*use step_with.*u is not expected"):
        t.adam_step(0.1, 0.9, 0.999, 1e-8, X)
    t.params["w"].requires_grad, t.params["u"].requires_grad = False, True  # as many as once were saved, but others
    with pytest.raises(UsageError, match="w is not expected"):
        t.step_with(optim.adam(0.1), state, X)
    t.params["w"].requires_grad = True
    assert t.step_with(optim.adam(0.1), state, X).t == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_set_params_leaves_the_moments(backend: str) -> None:
    """As in PyTorch: parameters get other values, and the moments stay those that they had."""
    t, other = trainer(backend=backend), trainer()
    optimizer = optim.adam(0.1)
    states = [each.step_with(optimizer, each.init_optim(optimizer), X) for each in (t, other)]
    for each in (t, other):
        each.set_params({name: value + 1 for name, value in MATRICES.items()})
    after = [each.step_with(optimizer, state, X) for each, state in zip((t, other), states)]
    close(after[0], after[1])


def close(a: OptimizerState, b: OptimizerState) -> None:
    assert a.t == b.t
    for x, y in zip(a.slots, b.slots, strict=True):
        for one, two in zip(x, y, strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-12)


COPIES: dict[str, Callable[[OptimizerState], OptimizerState]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda state: pickle.loads(pickle.dumps(state)),
    "rebuilt": lambda state: OptimizerState(state.t, [list(each) for each in state.slots], state.layout),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("how", COPIES)
def test_a_copy_goes_on_like_the_original_and_shares_nothing(how: str, backend: str) -> None:
    optimizer = optim.adam(0.1)
    runs = []
    for take in (lambda state: state, COPIES[how]):
        t = trainer(backend=backend)
        state = take(t.step_with(optimizer, t.init_optim(optimizer), X))
        runs.append((t.step_with(optimizer, state, X), t.get_params()))
    close(runs[0][0], runs[1][0])
    assert all(np.array_equal(runs[0][1][name], runs[1][1][name]) for name in MATRICES)
    t = trainer(backend=backend)
    state = t.step_with(optimizer, t.init_optim(optimizer), X)
    other = COPIES[how](state)
    kept = copy.deepcopy(state)
    for _ in range(3):
        t.advance(optimizer, state, X)  # in the memory of its moments
    close(other, kept)
    with pytest.raises(UsageError, match="that of adam, but the optimizer is adamw"):
        t.step_with(optim.adamw(0.1), other, X)


def test_a_state_that_says_nothing_of_itself_is_refused() -> None:
    t = trainer()
    state = t.init_optim(optim.adam(0.1))
    refused(t, optim.adam(0.1), OptimizerState(state.t, state.slots), "does not say of which optimizer")
    for nonsense in ({}, (), state.slots, np.zeros(3), 0, optim.adam(0.1)):
        refused(t, optim.adam(0.1), nonsense, r"takes the optimizer's state before the batch, but got an? ")


@pytest.mark.parametrize("optimizer", [optim.adam, 0.1, "adam", object()], ids=["class", "number", "name", "object"])
def test_what_is_no_optimizer_is_refused(optimizer: Any) -> None:
    t = trainer()
    state = t.init_optim(optim.adam(0.1))
    refused(t, optimizer, state, "the optimizer must be one of opstage.optim")
    with pytest.raises(UsageError, match=r"the optimizer must be one of opstage\.optim"):
        t.init_optim(optimizer)


@pytest.mark.parametrize("maker", BACKENDS)
@pytest.mark.parametrize("taker", BACKENDS)
def test_another_trainer_of_the_same_parameters_may_go_on(maker: str, taker: str) -> None:
    """On its own interpreter, from copies: the state that it was given stays as it is."""
    a, b, alone = trainer(backend=maker), trainer(backend=taker), trainer()
    optimizer = optim.adam(0.1)
    state = a.step_with(optimizer, a.init_optim(optimizer), X)
    expected = alone.step_with(optimizer, alone.init_optim(optimizer), X)
    kept = copy.deepcopy(state)
    b.set_params(a.get_params())
    result, _ = b.step_with(optimizer, state, X), alone
    close(result, alone.step_with(optimizer, expected, X))
    close(state, kept)
    moved = copy.deepcopy(state)
    b.advance(optimizer, state, X)
    assert state.t == 2 and moved.t == 1
    a.step_with(optimizer, state, X)  # and back


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_state_given_out_is_the_callers_own(backend: str) -> None:
    t, peer = trainer(backend=backend), trainer(backend=backend)
    optimizer = optim.adam(0.1)
    states = [each.step_with(optimizer, each.init_optim(optimizer), X) for each in (t, peer)]
    for each in states[0].slots:
        for slot in each:
            slot[...] = np.nan
    values = t.export_optim(optimizer, states[0])
    back = t.import_optim(optimizer, values)
    for slots in values.slots.values():
        for slot in slots:
            slot[...] = np.nan
    close(t.step_with(optimizer, back, X), peer.step_with(optimizer, states[1], X))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_slot_that_an_update_hands_through_is_not_written_over(backend: str) -> None:
    """An optimizer that returns its slots unchanged: old and new state then hold one value."""
    t = trainer(backend=backend)
    optimizer = Averaged(0.1, 1)
    first = t.init_optim(optimizer)
    second = t.step_with(optimizer, first, X)
    for _ in range(3):
        t.advance(optimizer, second, X)
        t.advance(optim.adam(0.1), t.init_optim(optim.adam(0.1)), X)
    for state in (first, second):
        assert all(np.all(slot == 0) for each in state.slots for slot in each)


CHECKPOINTS = [
    ("adam", "adamw"),
    ("momentum", "nesterov"),
    ("rmsprop", "adagrad"),
    ("sgd", "adam"),
    ("muon, adam", "muon, adamw"),
    ("muon, adam", "muon"),
]


@pytest.mark.parametrize("maker, taker", CHECKPOINTS)
def test_a_checkpoint_is_not_resumed_with_another_optimizer(tmp_path: Path, maker: str, taker: str) -> None:
    params = MATRICES if "muon" in (maker, taker) else MIXED
    t = trainer(params)
    state = t.step_with(OPTIMIZERS[maker], t.init_optim(OPTIMIZERS[maker]), X)
    save(tmp_path, take_snapshot(t, OPTIMIZERS[maker], state))
    fresh = trainer(params)
    before = fresh.get_params()
    with pytest.raises(UsageError, match=r"the saved optimizer state is that of .*, not of "):
        restore(fresh, load(tmp_path), OPTIMIZERS[taker])
    assert all(np.array_equal(before[name], value) for name, value in fresh.get_params().items())
    resumed = restore(fresh, load(tmp_path), OPTIMIZERS[maker])
    assert resumed is not None
    close(resumed, state)
    close(fresh.step_with(OPTIMIZERS[maker], resumed, X), t.step_with(OPTIMIZERS[maker], state, X))


def test_half_a_snapshot_is_refused() -> None:
    t = trainer()
    for optimizer, state in ((optim.adam(0.1), None), (None, t.init_optim(optim.adam(0.1)))):
        with pytest.raises(UsageError, match="an optimizer together with its state, or neither"):
            take_snapshot(t, optimizer, state)


def test_modules_and_loops_refuse_it_too() -> None:
    made = ScalarModuleDef(MIXED, square).instantiate(Options(dtype="float64"))
    state = made.init_optim(optim.adam(0.1))
    with pytest.raises(UsageError, match="that of adam, but the optimizer is adamw"):
        made.step_with(optim.adamw(0.1), state, X)
    with pytest.raises(UsageError, match="that of adam, but the optimizer is rmsprop"):
        made.train_with(optim.rmsprop(0.1), state, 3, [(X,)], log_every=0)
    assert made.train_with(optim.adam(0.1), state, 3, [(X,)], log_every=0).t == 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_session_keeps_the_moments_of_each_optimizer_apart(backend: str) -> None:
    """adam_step_all after adamw_step_all starts where Adam stood, and so does the trainer's named step."""

    def gradient_free(how: str, steps: list[str]) -> Any:
        session = Session(Options(backend=backend, dtype="float64"))
        w = session.param(np.ones(3), name="w")
        for name in steps:
            use = session.use(w)
            session.backward(session.sum(session.mul(use, use)))
            getattr(session, f"{name}_step_all")(0.1)
            session.reset_tape()
        return w.value

    def named(steps: list[str]) -> Any:
        t = scalar_trainer(lambda ops, p: ops.sum(ops.mul(p, p)), np.ones(3), options=Options(dtype="float64"))
        for name in steps:
            if name == "sgd":
                t.step(0.1)
            else:
                getattr(t, f"{name}_step")(*((0.1, 0.9, 0.999, 1e-8) + ((0.01,) if name == "adamw" else ())))
        return t.get_params()

    steps = ["adam", "adamw", "sgd", "adam", "adamw"]
    np.testing.assert_allclose(gradient_free(backend, steps), named(steps), rtol=1e-12)
