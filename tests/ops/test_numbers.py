"""Numbers and tensors as users write them: integers, NumPy's scalars, fractions, lists."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Param, ScalarModuleDef, Session, optim
from opstage.data import Loader, from_arrays
from opstage.init import Declaration, build, normal, uniform
from opstage.ops.errors import OpstageError, UsageError
from opstage.training.parameters import sgd_step
from opstage.training.trainer import scalar_trainer

F64 = Options(dtype="float64")
X = np.arange(6.0).reshape(2, 3) + 1
IMAGE = np.arange(96.0).reshape(2, 3, 4, 4)
ONES: list[Any] = [1, np.int64(1), np.int32(1), np.float32(1), np.float64(1), np.array(1.0), np.array(1), Fraction(1)]


def label(value: Any) -> str:
    return f"{type(value).__name__} {value}"


def linear(ops: Any, p: Any) -> Any:
    return ops.sum(ops.mul(p, p))


def stepped(optimizer: Any, **how: Any) -> Any:
    t = scalar_trainer(linear, np.full((2, 2), 3.0), options=Options(dtype="float64", validate=False), **how)
    state = t.init_optim(optimizer)
    for _ in range(2):
        state = t.step_with(optimizer, state)
    return t.get_params()


def run(f: Callable[..., Any], *args: Any) -> Any:
    return opstage.run(f, *args, options=F64)


def session_step(v: Any) -> Any:
    s = Session(F64)
    w = s.param(np.ones(3))
    s.backward(s.sum(s.use(w)), seed=float(v))
    s.sgd_step_all(v)
    s.adam_step_all(v, 0 * v, 0 * v, v)
    return w.value


def named(how: str, *shape: int) -> Callable[[Any], Any]:
    def do(v: Any) -> Any:
        t = scalar_trainer(linear, np.ones(3), options=Options(dtype="float64", validate=False))
        getattr(t, how)(*[v if each else 0 * v for each in shape])
        return t.get_params()

    return do


def param_step(v: Any) -> Any:
    p = Param(np.ones(2), dtype="float64")
    sgd_step(p, v, np.ones(2))
    return p.value


SCHEDULES = {
    "constant": lambda v: optim.schedule.constant(v),
    "step": lambda v: optim.schedule.step(v, 1, v),
    "exponential": lambda v: optim.schedule.exponential(v, v),
    "cosine": lambda v: optim.schedule.cosine(v, 3, v),
    "warmup": lambda v: optim.schedule.linear_warmup(v, 1, v),
    "warmup cosine": lambda v: optim.schedule.warmup_cosine(v, 1, 3, v),
    "cyclic": lambda v: optim.schedule.cyclic(v, v, 1, None, "exp_range", v),
    "one cycle": lambda v: optim.schedule.one_cycle(v, 3, v, "cos", v, v),
}
FLOATS: dict[str, Callable[[Any], Any]] = {
    "step": named("step", 1),
    "adam_step": named("adam_step", 1, 0, 0, 1),
    "adamw_step": named("adamw_step", 1, 0, 0, 1, 1),
    "session": session_step,
    "sgd_step": param_step,
    "sgd": lambda v: stepped(optim.sgd(v, weight_decay=v)),
    "momentum": lambda v: stepped(optim.momentum(v, momentum=v, weight_decay=v)),
    "nesterov": lambda v: stepped(optim.nesterov(v, momentum=v, weight_decay=v)),
    "adagrad": lambda v: stepped(optim.adagrad(v, lr_decay=v, weight_decay=v, eps=v, initial_accumulator_value=v)),
    "rmsprop": lambda v: stepped(optim.rmsprop(v, alpha=v, eps=v, weight_decay=v)),
    "adam": lambda v: stepped(optim.adam(v, betas=[0 * v, 0 * v], eps=v, weight_decay=v)),
    "adamw": lambda v: stepped(optim.adamw(v, betas=(0 * v, 0 * v), eps=v, weight_decay=v)),
    "adadelta": lambda v: stepped(optim.adadelta(v, rho=v, eps=v, weight_decay=v)),
    "muon": lambda v: stepped(optim.muon(v, momentum=0 * v, eps=v, weight_decay=v)),
    **{f"schedule {n}": lambda v, make=make: stepped(optim.sgd(make(v))) for n, make in SCHEDULES.items()},
    "clip by value": lambda v: stepped(optim.sgd(0.1), clip=optim.clip.by_value(v)),
    "clip by norm": lambda v: stepped(optim.sgd(0.1), clip=optim.clip.by_norm(v)),
    "clip by global norm": lambda v: stepped(optim.sgd(0.1), clip=optim.clip.by_global_norm(v)),
    "scale": lambda v: run(lambda ops, x: ops.scale(x, c=v), X),
    "clamp": lambda v: run(lambda ops, x: ops.clamp(x, lo=v, hi=v), X),
    "pow": lambda v: run(lambda ops, x: ops.pow(x, exponent=v), X),
    "full": lambda v: run(lambda ops, x: ops.full(shape=(2,), value=v), X),
    "safe_log": lambda v: run(lambda ops, x: ops.safe_log(x, eps=v), X),
    "layer_norm": lambda v: run(lambda ops, x: ops.layer_norm(x, None, None, eps=v), X),
    "smooth_max_pool": lambda v: run(lambda ops, x: ops.smooth_max_pool(x, kernel=(2, 2), beta=v), IMAGE),
    "infix": lambda v: run(lambda ops, x: x * float(v) + v / 1 - float(v) / x, X),
    "uniform": lambda v: build({"w": Declaration((2, 3), uniform(0 * v, v))}, dtype="float64"),
    "normal": lambda v: build({"w": Declaration((2, 3), normal(v, v))}, dtype="float64"),
}


@pytest.mark.parametrize("what", FLOATS)
def test_a_number_is_a_number(what: str) -> None:
    expected = opstage.ops.trees.flatten(FLOATS[what](1.0))[0]
    for v in ONES:
        got = opstage.ops.trees.flatten(FLOATS[what](v))[0]
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=label(v))


@pytest.mark.parametrize(
    "bad", [True, None, "1", float("nan"), float("inf"), -1, 10**400, 1j, [1.0], np.ones(1)], ids=label
)
def test_what_is_no_rate_is_refused(bad: Any) -> None:
    for what in ("step", "sgd", "adam", "schedule constant", "schedule cosine", "clip by norm", "sgd_step"):
        with pytest.raises(UsageError, match=r"must be .* but is"):
            FLOATS[what](bad) if what != "adam" else optim.adam(0.1, eps=bad)


class Odd(optim.Schedule):
    """A schedule of somebody's own, which may give anything."""

    def __init__(self, value: Any):
        self.value = value

    def __call__(self, step: int) -> Any:
        return self.value


@pytest.mark.parametrize("value", ONES, ids=label)
def test_a_schedule_may_give_any_number(value: Any) -> None:
    np.testing.assert_array_equal(stepped(optim.sgd(Odd(value))), stepped(optim.sgd(1.0)))


@pytest.mark.parametrize("value", [None, float("nan"), -0.1, True, np.ones(2)], ids=label)
def test_a_schedule_that_gives_no_rate(value: Any) -> None:
    with pytest.raises(UsageError, match="learning rate must be finite and at least 0 but is"):
        stepped(optim.sgd(Odd(value)))


def test_fractions_stay_exact_where_tensors_are() -> None:
    p = [Fraction(1), Fraction(2)]
    t = scalar_trainer(
        lambda ops, p: ops.sum(p), np.array(p, dtype=object), options=Options(dtype="exact", validate=False)
    )
    t.step(Fraction(1, 3))
    t.step(1)
    assert t.get_params().tolist() == [Fraction(-1, 3), Fraction(2, 3)]


# Integers and shapes -------------------------------------------------------------------------------------------------

INTS: list[Callable[[int], Any]] = [int, np.int64, np.int32, np.uint8, np.array]
SEQUENCES: list[Callable[[Any], Any]] = [list, tuple]
STATICS: dict[str, Callable[[Any, Any], Any]] = {
    "reshape": lambda s, i: run(lambda ops, x: ops.reshape(x, shape=s([i(3), i(2)])), X),
    "permute": lambda s, i: run(lambda ops, x: ops.permute(x, axes=s([i(1), i(0)])), X),
    "broadcast_to": lambda s, i: run(lambda ops, x: ops.broadcast_to(x, shape=s([i(4), i(2), i(3)])), X),
    "reduce_sum": lambda s, i: run(lambda ops, x: ops.reduce_sum(x, axis=s([i(0), i(1)])), X),
    "one axis": lambda s, i: run(lambda ops, x: ops.reduce_sum(x, axis=i(0)), X),
    "softmax": lambda s, i: run(lambda ops, x: ops.softmax(x, axis=i(0)), X),
    "concat": lambda s, i: run(lambda ops, x: ops.concat(s([x, x]), axis=i(0)), X),
    "slice": lambda s, i: run(lambda ops, x: ops.slice(x, axis=i(0), start=i(0), length=i(1)), X),
    "max_pool": lambda s, i: run(
        lambda ops, x: ops.max_pool(x, kernel=s([i(2), i(2)]), stride=i(2), padding=s([i(0), i(0)])), IMAGE
    ),
    "full": lambda s, i: run(lambda ops, x: ops.full(shape=s([i(2), i(3)]), value=0.0), X),
    "squeeze": lambda s, i: run(lambda ops, x: ops.squeeze(ops.reshape(x, shape=(1, 2, 3)), axis=i(0)), X),
    "gather_row": lambda s, i: run(lambda ops, x: ops.gather_row(x, index=i(1)), X),
    "stack": lambda s, i: run(lambda ops, x: ops.stack(s([x, x]), axis=i(1)), X),
    "split": lambda s, i: run(lambda ops, x: ops.split(x, sizes=s([i(1), i(1)]), axis=i(0)), X),
    "group_norm": lambda s, i: run(lambda ops, x: ops.group_norm(x, None, None, groups=i(3)), IMAGE),
    "seed": lambda s, i: opstage.run(lambda ops, x: ops.rand_uniform(shape=(2,)), X, options=Options(seed=i(3))),
    "first values": lambda s, i: build({"w": Declaration((2, 3), normal(0.0, 1.0))}, seed=i(3)),
    "order": lambda s, i: (
        list(Loader(from_arrays(x=np.arange(8)), i(4), seed=i(3)).epoch(0))
        if i is int
        else list(Loader(from_arrays(x=np.arange(8)), 4, seed=i(3)).epoch(0))
    ),
    "wrt": lambda s, i: opstage.value_and_grad(
        lambda ops, x, y: ops.sum(ops.mul(x, y)), X, X, wrt=s([i(0), i(1)]), options=F64
    ),
    "one wrt": lambda s, i: opstage.value_and_grad(
        lambda ops, x, y: ops.sum(ops.mul(x, y)), X, X, wrt=i(1), options=F64
    ),
    "counts": lambda s, i: stepped(optim.muon(0.1, ns_steps=i(2)), clip=None),
    "warmup": lambda s, i: stepped(optim.sgd(optim.schedule.linear_warmup(0.1, i(2)))),
}


@pytest.mark.parametrize("what", STATICS)
def test_integers_and_sequences_in_any_form(what: str) -> None:
    expected = opstage.ops.trees.flatten(STATICS[what](tuple, int))[0]
    for sequence in SEQUENCES:
        for integer in INTS:
            got = opstage.ops.trees.flatten(STATICS[what](sequence, integer))[0]
            for a, b in zip(got, expected, strict=True):
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("axis", [True, 0.0, "0", None])
def test_what_is_no_axis(axis: Any) -> None:
    with pytest.raises(OpstageError, match="axis must be an int but is"):
        run(lambda ops, x: ops.softmax(x, axis=axis), X)


def test_options_take_numpys_dtypes() -> None:
    assert Options(dtype=np.float64).dtype == Options(dtype=np.dtype("float64")).dtype == "float64"  # type: ignore[arg-type]
    assert type(Options(seed=np.int64(3)).seed) is int  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="dtype"):
        Options(dtype=np.float16)  # type: ignore[arg-type]


def test_flags_are_numpys_too() -> None:
    for flags in (np.True_, [np.True_, True], {"a": np.True_, "b": True}):
        t = scalar_trainer(
            lambda ops, p: ops.sum(p["a"]),
            {"a": np.ones(2), "b": np.ones(2)},
            options=Options(validate=False),
            requires_grad=flags,
        )
        assert all(param.requires_grad is True for param in t.params.values())


# Lists ---------------------------------------------------------------------------------------------------------------

TABLE = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]


def weighted(ops: Any, p: Any, x: Any, k: Any) -> Any:
    return ops.sum(ops.gather_rows(ops.mul(p, x), k))


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_a_list_of_numbers_is_an_array(backend: str) -> None:
    o = Options(backend=backend, dtype="float64")
    arrays = np.ones((2, 3)), np.array(TABLE), np.array([1, 0, 1])
    lists = [[1, 1, 1], [1, 1, 1.0]], TABLE, [1, 0, 1]
    results = []
    for p, x, k in (lists, arrays):
        t = scalar_trainer(weighted, p, options=o)
        seen = [t.step(1, x, k), t.forward(x, k), t.backward(x, k), t.get_params()]
        t.set_params(TABLE if type(p) is list else np.array(TABLE))
        state = t.step_with(optim.adam(1), t.init_optim(optim.adam(1)), x, k)
        made = ScalarModuleDef({"w": p}, lambda ops, p, x, k: weighted(ops, p["w"], x, k)).instantiate(o)
        made.train_sgd(1, 2, [(x, k)], log_every=0)
        seen += [t.get_params(), *state.slots[0], made.params()["w"]]
        results.append(seen)
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_list_of_anything_else_is_a_tree() -> None:
    def loss(ops: Any, p: Any, x: Any) -> Any:
        return ops.sum(ops.mul(ops.mul(p[0], p[1]["a"]), ops.add(x[0], x[1])))

    t = scalar_trainer(loss, [np.array(2.0), {"a": np.array(3.0)}], options=F64)
    for x in ([np.array(1.0), np.array(2.0)], (1.0, 2.0), [np.array(1.0), 2.0]):
        grads = t.backward(x)
        assert isinstance(grads, list) and [float(grads[0]), float(grads[1]["a"])] == [9.0, 6.0]


def test_rows_of_different_lengths() -> None:
    t = scalar_trainer(lambda ops, p, x: ops.sum(ops.mul(p, x)), np.ones(2), options=F64)
    for ragged in ([[1.0, 2.0], [3.0]], [1.0, [2.0]]):
        with pytest.raises(UsageError, match="rows of different lengths"):
            t.step(0.1, ragged)
        with pytest.raises(UsageError, match="rows of different lengths"):
            t.set_params(ragged)
