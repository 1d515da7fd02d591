"""ScalarModuleDef and ScalarModule: a loss with its initial parameters, instantiated and trained."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from opstage import Options, Param, ScalarModule, ScalarModuleDef, Spec, init, optim
from opstage.ops.errors import OpstageError, ShapeError, UsageError, ValidationError
from opstage.ops.types import TensorType
from opstage.training.parameters import set_values

FLOAT64 = Options(dtype="float64")


def loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
    return ops.mse_loss(ops.linear(params["w"], params["b"], x), y)


def values() -> dict[str, Any]:
    return {"b": np.array([0.1, -0.2]), "w": np.arange(6.0).reshape(2, 3) / 7}


def declarations() -> dict[str, Any]:
    return {"b": init.Declaration((2,), init.zeros), "w": init.Declaration((2, 3), init.uniform(-1.0, 1.0))}


def samples(count: int = 4) -> list[tuple[Any, Any]]:
    rng = np.random.default_rng(1)
    return [(rng.standard_normal((5, 3)), rng.standard_normal((5, 2))) for _ in range(count)]


def numpy_loss(p: dict[str, Any], x: Any, y: Any) -> float:
    return float(np.mean((x @ p["w"].T + p["b"] - y) ** 2))


def numpy_step(p: dict[str, Any], lr: float, x: Any, y: Any) -> dict[str, Any]:
    error = 2 * (x @ p["w"].T + p["b"] - y) / y.size
    return {"b": p["b"] - lr * error.sum(0), "w": p["w"] - lr * error.T @ x}


def close(actual: Any, expected: Any) -> None:
    assert sorted(actual) == sorted(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-12, atol=1e-14)


def module(options: Options = FLOAT64) -> ScalarModule:
    return ScalarModuleDef(values(), loss).instantiate(options)


# Instantiating ------------------------------------------------------------------------------------------------------


def test_instantiate_takes_the_values_in_the_dtype_of_the_options() -> None:
    given = values()
    definition = ScalarModuleDef(given, loss)
    made = definition.instantiate(FLOAT64)
    close(made.params(), given)
    single = definition.instantiate().params()
    assert all(value.dtype == np.float32 for value in single.values())
    np.testing.assert_array_equal(single["w"], given["w"].astype(np.float32))
    given["w"][...] = 9.0  # the caller's array is the caller's
    close(made.params(), values())


def test_two_instances_share_nothing() -> None:
    definition = ScalarModuleDef(values(), loss)
    first, second = definition.instantiate(FLOAT64), definition.instantiate(FLOAT64)
    first.step(0.5, *samples()[0])
    close(second.params(), values())


def test_instantiate_builds_declared_parameters_from_the_seed() -> None:
    definition = ScalarModuleDef(declarations(), loss)
    first, same, other = (definition.instantiate(Options(seed=seed)).params() for seed in (1, 1, 2))
    assert np.array_equal(first["w"], same["w"]) and not np.array_equal(first["w"], other["w"])
    assert np.all(first["b"] == 0) and np.all(np.abs(first["w"]) <= 1)
    wide = definition.instantiate(Options(seed=1, dtype="float64")).params()
    np.testing.assert_allclose(wide["w"], first["w"], rtol=1e-6)  # the same draws, rounded less


def test_instantiate_with_casts_the_exact_initial_values() -> None:
    seen: list[Any] = []

    def halve(array: Any) -> Any:
        seen.append(array.dtype)
        return array / 2

    made = ScalarModuleDef(values(), loss).instantiate_with(halve, FLOAT64)
    close(made.params(), {name: value / 2 for name, value in values().items()})
    assert seen == [np.float64, np.float64]

    seen.clear()
    given = {name: value.astype(np.float32) for name, value in values().items()}
    ScalarModuleDef(given, loss).instantiate_with(halve, FLOAT64)
    ScalarModuleDef(given, loss).instantiate_with(lambda a: np.multiply(a, 0, out=a), FLOAT64)
    assert seen == [np.float64, np.float64]
    np.testing.assert_array_equal(given["w"], values()["w"].astype(np.float32))  # a cast may write to what it gets

    seen.clear()
    ScalarModuleDef(declarations(), loss).instantiate_with(halve, Options(dtype="float32"))
    assert seen == [np.float64, np.float64]  # made in float64, whatever it is cast to

    coarse = ScalarModuleDef(values(), loss).instantiate_with(lambda a: np.round(4 * a) / 4, FLOAT64).params()
    assert np.all(4 * coarse["w"] == np.round(4 * coarse["w"]))


def test_a_cast_that_changes_a_shape_is_found_by_the_checks() -> None:
    made = ScalarModuleDef(values(), loss).instantiate_with(lambda a: a[:1], FLOAT64)
    with pytest.raises(ValidationError, match=r"linear at .*test_module.py|mse_loss at .*test_module.py"):
        made.forward(*samples()[0])


def test_instantiate_with_plan_replaces_the_initial_values() -> None:
    plan = init.Plan({"b": init.ones, "w": init.flat([1, 2, 3, 4, 5, 6])})
    made = ScalarModuleDef(values(), loss).instantiate_with_plan(FLOAT64, plan)
    close(made.params(), {"b": np.ones(2), "w": np.arange(1.0, 7).reshape(2, 3)})
    seeded = init.Plan({"b": init.zeros, "w": init.uniform(0.0, 1.0, seed=3)})
    w = ScalarModuleDef(declarations(), loss).instantiate_with_plan(Options(seed=99), seeded).params()["w"]
    again = ScalarModuleDef(declarations(), loss).instantiate_with_plan(Options(seed=7), seeded).params()["w"]
    assert np.array_equal(w, again)  # the initialiser's own seed wins
    assert w.min() >= 0 and w.max() < 1


def test_instantiate_with_init_takes_a_list_in_the_order_of_the_paths() -> None:
    made = ScalarModuleDef(values(), loss).instantiate_with_init(FLOAT64, [init.ones, init.zeros])
    close(made.params(), {"b": np.ones(2), "w": np.zeros((2, 3))})


@pytest.mark.parametrize(
    ("initialisers", "message"),
    [
        ([init.ones], r"the plan has 1 initialisers for 2 parameters: parameter w \(2, 3\) has none"),
        ([], r"the plan has 0 initialisers for 2 parameters: parameter b \(2,\) has none"),
        (
            [init.ones] * 3,
            r"the plan has 3 initialisers for 2 parameters: initialiser 2, ",
        ),
        ([init.ones, np.zeros((2, 3))], r"which is not an initialiser; the module opstage.init has them"),
        ([init.flat([1, 2, 3]), init.ones], r"parameter b: .*3.*2"),
    ],
    ids=["short", "none", "long", "an array", "misfit"],
)
def test_a_list_of_initialisers_that_does_not_fit(initialisers: Any, message: str) -> None:
    given = values()
    definition = ScalarModuleDef(given, loss)
    with pytest.raises(UsageError, match=message):
        definition.instantiate_with_init(FLOAT64, initialisers)
    close(given, values())


def test_frozen_parameters_of_every_way_to_instantiate() -> None:
    definition = ScalarModuleDef(values(), loss)
    flags = {"b": False, "w": True}
    plan = init.Plan({"b": init.ones, "w": init.ones})
    for made in (
        definition.instantiate(FLOAT64, requires_grad=flags),
        definition.instantiate_with(lambda a: a, FLOAT64, requires_grad=flags),
        definition.instantiate_with_plan(FLOAT64, plan, requires_grad=flags),
        definition.instantiate_with_init(FLOAT64, [init.ones, init.ones], requires_grad=[False, True]),
    ):
        before = made.params()
        made.step(0.1, *samples()[0])
        assert np.array_equal(made.params()["b"], before["b"])
        assert not np.array_equal(made.params()["w"], before["w"])
        assert made.backward(*samples()[0])["b"] is None
    with pytest.raises(UsageError, match="the first parameter without one is w"):
        definition.instantiate(FLOAT64, requires_grad=[True])


def test_create_takes_specs_as_the_contract() -> None:
    made = ScalarModule.create(loss, values(), FLOAT64, Spec("B 3"), Spec("B 2"))
    made.step(0.1, *samples()[0])
    with pytest.raises(ShapeError, match="but B is 5"):
        made.step(0.1, samples()[0][0], np.zeros((4, 2)))
    with pytest.raises(ValidationError, match="did you mean weight of shape"):
        ScalarModule.create(loss, values(), FLOAT64, Spec("B 4"), Spec("B 2"))


# Running and training -----------------------------------------------------------------------------------------------


def test_forward_backward_and_step_are_the_trainers() -> None:
    made, (x, y) = module(), samples()[0]
    assert float(made.forward(x, y)) == pytest.approx(numpy_loss(values(), x, y), rel=1e-12)
    grads = made.backward(x, y)
    close({name: values()[name] - grads[name] for name in grads}, numpy_step(values(), 1.0, x, y))
    assert float(made.step(0.1, x, y)) == pytest.approx(numpy_loss(values(), x, y), rel=1e-12)
    close(made.params(), numpy_step(values(), 0.1, x, y))


def test_step_with_goes_from_state_to_state() -> None:
    made, (x, y) = module(), samples()[0]
    optimizer = optim.momentum(lr=0.1, momentum=0.5)
    first = made.init_optim(optimizer)
    second = made.step_with(optimizer, first, x, y)
    third = made.step_with(optimizer, second, x, y)
    assert [state.t for state in (first, second, third)] == [0, 1, 2]


def test_train_sgd_goes_through_the_samples_in_turn() -> None:
    made, data = module(), samples(3)
    p = values()
    for i in range(7):
        p = numpy_step(p, 0.05, *data[i % 3])
    made.train_sgd(0.05, 7, data, log_every=0)
    close(made.params(), p)


def test_train_with_returns_the_state_to_go_on_from() -> None:
    data = samples(2)
    optimizer = optim.adamw(lr=0.05)
    whole, parts = module(), module()
    end = whole.train_with(optimizer, whole.init_optim(optimizer), 6, data, log_every=0)
    state = parts.train_with(optimizer, parts.init_optim(optimizer), 4, data, log_every=0)
    state = parts.train_with(optimizer, state, 2, data, log_every=0)
    close(parts.params(), whole.params())
    assert state.t == end.t == 6


def test_training_lowers_the_mean_loss() -> None:
    made, data = module(), samples(4)
    before = made.mean_loss(data)
    assert before == pytest.approx(np.mean([numpy_loss(values(), x, y) for x, y in data]), rel=1e-12)
    made.train_sgd(0.1, 40, data, log_every=0)
    assert made.mean_loss(data) < 0.8 * before


def test_mean_loss_never_updates() -> None:
    made, data = module(), samples(3)
    before = made.params()
    first = made.mean_loss(data)
    assert made.mean_loss(data) == first
    close(made.params(), before)
    assert made.trainer.steps_taken == 0


def test_mean_loss_of_fractions_is_exact() -> None:
    third = [[Fraction(1, 3)] * 3]
    made = ScalarModuleDef({"w": np.ones((2, 3)), "b": np.ones(2)}, loss).instantiate(Options(dtype="exact"))
    data = [(third, [[Fraction(1, 7), 1.0]]), (third, [[0.0, Fraction(1, 3)]])]
    # the output is (2, 2): ((13/7)² + 1²)/2 = 109/49, and (2² + (5/3)²)/2 = 61/18
    assert made.mean_loss(data) == Fraction(109, 49) / 2 + Fraction(61, 18) / 2
    assert type(module().mean_loss(samples())) is float
    lines: list[str] = []
    made.train_sgd(0.5, 1, [(np.array([[10**400] * 3], object), [[0.0, 0.0]])], log=lines.append)
    assert len(lines[0]) > 400  # more than a float can hold


def test_a_module_on_shapes_checks_and_gives_types() -> None:
    made, data, lines = module(Options(backend="shape_check", dtype="float64")), samples(2), []
    log: Callable[[str], None] = lines.append
    scalar = TensorType((), np.dtype("float64"))
    optimizer = optim.adam()
    state = made.init_optim(optimizer)
    for typed in (made.forward(*data[0]), made.step(0.1, *data[0]), made.mean_loss(data)):
        assert (tuple(typed.shape), typed.dtype) == (scalar.shape, scalar.dtype)
    assert {name: tuple(each.shape) for name, each in made.backward(*data[0]).items()} == {"w": (2, 3), "b": (2,)}
    made.train_sgd(0.1, 2, data, log=log)
    state = made.train_with(optimizer, made.step_with(optimizer, state, *data[0]), 2, data, log=log)
    assert lines == [f"step {i}/2  loss {scalar}" for i in (1, 2, 1, 2)]
    close(made.params(), values())  # nothing was trained
    made.set_params(init.Plan([init.zeros, init.ones]))
    assert np.all(made.params()["w"] == 1)
    with pytest.raises(ValidationError, match="in=3 differs from 2"):
        made.mean_loss([(data[0][0][:, :2], data[0][1])])


def test_a_plan_initialises_parameters_that_exist() -> None:
    made, (x, y) = module(), samples()[0]
    optimizer = optim.momentum(lr=0.1)
    state = made.step_with(optimizer, made.init_optim(optimizer), x, y)
    plan = init.Plan({"w": init.uniform(1.0, 2.0), "b": init.zeros})
    made.set_params(plan)
    close(made.params(), plan.materialise(values(), dtype="float64"))
    held = made.trainer.params["w"]
    made.step_with(optimizer, state, x, y)
    assert made.trainer.params["w"] is held and made.trainer.steps_taken == 2
    before = made.params()
    for wrong, message in [
        (init.Plan({"w": init.ones, "b": init.flat([1.0])}), "parameter b: flat has 1 values"),
        (init.Plan([init.ones]), "parameter w .* has none"),
        (init.Plan({"w": init.ones}), "b is missing"),
    ]:
        with pytest.raises(UsageError, match=message):
            made.set_params(wrong)
    close(made.params(), before)
    table = {"t": Param([1, 2], requires_grad=False)}
    with pytest.raises(UsageError, match="t is int64, and a plan makes floats"):
        set_values(table, init.Plan([init.zeros]))


@pytest.mark.parametrize(
    ("log_every", "logged"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (3, [3, 5]), (5, [5]), (9, [5]), (0, [])]
)
@pytest.mark.parametrize("with_optimizer", [False, True])
def test_every_so_many_steps_and_the_last_are_logged(log_every: int, logged: list[int], with_optimizer: bool) -> None:
    made, data, lines = module(), samples(2), []
    log: Callable[[str], None] = lines.append
    if with_optimizer:
        optimizer = optim.sgd(lr=0.1)
        made.train_with(optimizer, made.init_optim(optimizer), 5, data, log_every, log)
    else:
        made.train_sgd(0.1, 5, data, log_every, log)
    p, losses = values(), []
    for i in range(5):
        losses.append(numpy_loss(p, *data[i % 2]))
        p = numpy_step(p, 0.1, *data[i % 2])
    assert lines == [f"step {n}/5  loss {losses[n - 1]:.6g}" for n in logged]


def test_logs_are_printed_where_nothing_else_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    module().train_sgd(0.1, 1, samples(1))
    assert capsys.readouterr().out.startswith("step 1/1  loss ")


def test_a_sample_of_a_single_array_needs_no_tuple() -> None:
    made = ScalarModuleDef(np.ones(3), lambda ops, p, x: ops.sum(p * x)).instantiate(FLOAT64)
    data = [np.full(3, 2.0), np.full(3, 4.0)]
    assert made.mean_loss(data) == 9.0
    made.train_sgd(0.1, 2, data, log_every=0)
    np.testing.assert_allclose(made.params(), np.full(3, 1 - 0.2 - 0.4))


def test_bad_runs_are_refused_before_anything_happens() -> None:
    made, data = module(), samples(1)
    for call, message in [
        (lambda: made.train_sgd(0.1, 3, []), "expected at least one sample"),
        (lambda: made.mean_loss([]), "expected at least one sample"),
        (lambda: made.train_sgd(0.1, -1, data), "steps must be an integer that is at least 0 but is -1"),
        (lambda: made.train_sgd(0.1, 1, data, log_every=-2), "log_every must be .* but is -2"),
        (lambda: made.train_sgd(-0.1, 1, data), "lr"),
        (lambda: made.train_sgd(float("nan"), 1, data), "lr"),
    ]:
        with pytest.raises(UsageError, match=message):
            call()
    close(made.params(), values())
    made.train_sgd(0.1, 0, data)
    close(made.params(), values())


def test_a_bad_sample_in_the_middle_leaves_whole_steps_behind() -> None:
    made, data = module(), samples(2)
    with pytest.raises(ValidationError):
        made.train_sgd(0.1, 3, [data[0], (data[1][0][:, :2], data[1][1])], log_every=0)
    close(made.params(), numpy_step(values(), 0.1, *data[0]))


MISUSES: dict[str, Callable[[ScalarModule, ScalarModuleDef, Options], Any]] = {
    "cast": lambda m, d, o: d.instantiate_with(None, o),  # type: ignore[arg-type]
    "no list": lambda m, d, o: d.instantiate_with_init(o, None),  # type: ignore[arg-type]
    "a list of names": lambda m, d, o: d.instantiate_with_init(o, {"w": init.ones, "b": init.ones}),  # type: ignore[arg-type]
    "swapped": lambda m, d, o: d.instantiate_with_plan(init.Plan([init.ones] * 2), o),  # type: ignore[arg-type]
    "options": lambda m, d, o: d.instantiate({"backend": "eager"}),  # type: ignore[arg-type]
    "flag": lambda m, d, o: d.instantiate(o, requires_grad={"w": "no", "b": True}),
    "forward": lambda m, d, o: m.forward(samples()[0][0]),
    "a list": lambda m, d, o: m.backward([*samples()[0]]),
    "too many": lambda m, d, o: m.step(0.1, *samples()[0], 1.0),
    "a rate": lambda m, d, o: m.step("0.1", *samples()[0]),  # type: ignore[arg-type]
    "no rate": lambda m, d, o: m.step(*samples()[0]),
    "a class": lambda m, d, o: m.init_optim(optim.adam),  # type: ignore[arg-type]
    "no state": lambda m, d, o: m.step_with(optim.adam(), None, *samples()[0]),  # type: ignore[arg-type]
    "nothing": lambda m, d, o: m.set_params(None),
    "None": lambda m, d, o: m.set_params({"w": None, "b": np.ones(2)}),
    "text": lambda m, d, o: m.set_params({"w": "a", "b": np.ones(2)}),
    "samples": lambda m, d, o: m.train_sgd(0.1, 1, None),  # type: ignore[arg-type]
    "steps": lambda m, d, o: m.train_sgd(0.1, 1.5, samples()),  # type: ignore[arg-type]
    "every": lambda m, d, o: m.train_sgd(0.1, 1, samples(), 0.5),  # type: ignore[arg-type]
    "list sample": lambda m, d, o: m.mean_loss([[*samples()[0]]]),  # type: ignore[list-item]
    "no samples": lambda m, d, o: m.mean_loss(3),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("backend", ["eager", "compiled", "shape_check"])
@pytest.mark.parametrize("misuse", MISUSES.values(), ids=MISUSES)
def test_misuse_is_an_error_of_opstage_and_changes_nothing(misuse: Any, backend: Any) -> None:
    for validate in (True, False):
        options = Options(dtype="float64", backend=backend, validate=validate)
        definition = ScalarModuleDef(values(), loss)
        made = definition.instantiate(options)
        with pytest.raises(OpstageError):
            misuse(made, definition, options)
        close(made.params(), values())


def test_samples_may_come_from_a_generator() -> None:
    made, data = module(), samples(3)
    assert made.mean_loss(pair for pair in data) == module().mean_loss(data)
    made.train_sgd(0.05, 4, iter(data), log=None)
    expected = values()
    for i in range(4):
        expected = numpy_step(expected, 0.05, *data[i % 3])
    close(made.params(), expected)
