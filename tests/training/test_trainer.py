"""ScalarTrainer: right numbers, all or nothing, frozen parameters, state, contracts."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Spec, optim
from opstage.ops import trees
from opstage.ops.errors import ProgramError, ShapeError, UsageError, ValidationError
from opstage.ops.protocol import Aux
from opstage.training.state import OptimizerState
from opstage.training.trainer import ScalarTrainer, scalar_trainer
from opstage.transforms.anomaly import AnomalyError
from tests.optim.test_optim import adam

FLOAT64 = Options(dtype="float64")


def loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
    return ops.mse_loss(ops.linear(params["w"], params["b"], x), y)


def values(seed: int = 3) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {"w": rng.standard_normal((2, 3)), "b": rng.standard_normal(2)}


def batch(size: int = 5, seed: int = 4) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((size, 3)), rng.standard_normal((size, 2))


def trainer(**more: Any) -> ScalarTrainer:
    return scalar_trainer(loss, values(), Spec("B 3"), Spec("B 2"), **{"options": FLOAT64, **more})


def numpy_gradients(p: dict[str, Any], x: Any, y: Any) -> tuple[float, dict[str, Any]]:
    error = x @ p["w"].T + p["b"] - y
    g = 2 * error / error.size
    return float((error**2).mean()), {"w": g.T @ x, "b": g.sum(0)}


def same(a: Any, b: Any) -> bool:
    return all(np.array_equal(a[k], b[k]) for k in a)


def test_loss_gradients_and_sgd_step() -> None:
    t, (x, y) = trainer(), batch()
    expected, grads = numpy_gradients(values(), x, y)
    assert float(t.forward(x, y)) == pytest.approx(expected, rel=1e-12)
    value, given = t.loss_and_backward(x, y)
    assert float(value) == pytest.approx(expected, rel=1e-12)
    for name, g in grads.items():
        np.testing.assert_allclose(given[name], g, rtol=1e-12)
    assert same(t.get_params(), values())
    t.step(0.1, x, y)
    for name, g in grads.items():
        np.testing.assert_allclose(t.get_params()[name], values()[name] - 0.1 * g, rtol=1e-12)


@pytest.mark.parametrize("decoupled", [False, True])
def test_adam_steps_count_from_one_and_keep_their_moments(decoupled: bool) -> None:
    t, (x, y) = trainer(), batch()
    numbers, decay = (0.01, 0.9, 0.99, 1e-8), 0.1
    oracle = adam(0.01, (0.9, 0.99), 1e-8, decay if decoupled else 0.0, decoupled)
    p = values()
    kept: dict[str, dict[str, Any]] = {name: {} for name in p}
    for step in (1, 2, 3):
        _, grads = numpy_gradients(p, x, y)
        p |= {name: oracle(p[name], g, kept[name], step) for name, g in grads.items()}
        if decoupled:
            t.adamw_step(*numbers, decay, x, y)
        else:
            t.adam_step(*numbers, x, y)
    for k, w in p.items():
        np.testing.assert_allclose(t.get_params()[k], w, rtol=1e-10)


def test_step_with_is_functional_in_the_optimizer_state() -> None:
    t, (x, y) = trainer(), batch()
    optimizer = optim.adamw(lr=0.1)
    first = t.init_optim(optimizer)
    second = t.step_with(optimizer, first, x, y)
    assert (first.t, second.t) == (0, 1)
    assert all(np.all(slot == 0) for slots in first.slots for slot in slots)
    assert any(np.any(slot != 0) for slots in second.slots for slot in slots)


@pytest.mark.parametrize(
    "requires_grad", [{"w": True, "b": False}, [True, False]], ids=["tree", "list in the order of the parameters"]
)
def test_frozen_parameters_are_never_touched(requires_grad: Any) -> None:
    t, (x, y) = trainer(requires_grad=requires_grad), batch()
    before = t.get_params()
    assert t.backward(x, y)["b"] is None
    t.step(0.1, x, y)
    t.adamw_step(0.1, 0.9, 0.99, 1e-8, 0.5, x, y)
    after = t.get_params()
    assert np.array_equal(after["b"], before["b"])
    assert not np.array_equal(after["w"], before["w"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([True], r"requires_grad has 1 flags for 2 parameters; the first parameter without one is b"),
        ([True] * 3, r"requires_grad has 3 flags for 2 parameters"),
        ({"w": True}, r"b is missing"),
        ({"w": 1.0, "b": True}, r"requires_grad of w must be a bool but is 1.0"),
    ],
)
def test_requires_grad_of_the_wrong_length(flags: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        trainer(requires_grad=flags)


@pytest.mark.parametrize("lr", [-0.1, float("nan"), float("inf")])
def test_a_bad_learning_rate_changes_nothing(lr: float) -> None:
    t, (x, y) = trainer(), batch()
    with pytest.raises(UsageError, match="lr"):
        t.step(lr, x, y)
    assert same(t.get_params(), values())
    assert t.steps_taken == 0


def test_a_shape_outside_the_contract_changes_nothing() -> None:
    t, (x, y) = trainer(), batch()
    for wrong, message in [
        ((x[:, :2], y), r"batch.*x is \(5, 2\): it has 2 on axis 1 where Spec\(\"B 3\"\) wants 3"),
        ((x, y[:4]), r"y is \(4, 2\): it has 4 on axis 0 but B is 5"),
        ((x[0], y), r"x is \(3,\): it has rank 1 but Spec\(\"B 3\"\) has rank 2"),
    ]:
        with pytest.raises(ShapeError, match=message):
            t.step(0.1, *wrong)
    with pytest.raises(UsageError, match=r"is not expected there|is missing|structure"):
        t.step(0.1, x)
    assert same(t.get_params(), values())
    t.step(0.1, *batch(size=9))  # another batch size is inside the contract


def test_validation_happens_before_anything_runs() -> None:
    params = {**values(), "b": np.zeros(4)}
    with pytest.raises(ValidationError, match=r"linear at .*test_trainer.py:\d+.*bias is \(4,\)"):
        scalar_trainer(loss, params, Spec("B 3"), Spec("B 2"))
    scalar_trainer(loss, params, Spec("B 3"), Spec("B 2"), options=Options(validate=False))


def test_without_specs_each_new_shape_is_validated_when_it_comes() -> None:
    t = scalar_trainer(loss, values(), options=FLOAT64)
    t.step(0.1, *batch())
    before = t.get_params()
    with pytest.raises(ValidationError, match=r"x is \(5, 2\)"):
        t.step(0.1, batch()[0][:, :2], batch()[1])
    assert same(t.get_params(), before)


def test_an_anomaly_names_op_and_line_and_changes_nothing() -> None:
    def program(ops: Any, params: Any, x: Any) -> Any:
        return ops.sum(ops.region("middle", lambda inner, v: inner.sqrt(v), ops.mul(params, x)))

    t = scalar_trainer(program, np.ones(3), Spec("3"), options=FLOAT64.replace(detect_anomaly=True))
    with pytest.raises(
        AnomalyError, match=r"sqrt at .*test_trainer.py:\d+ \(middle\): sqrt gave nan at index \(1,\)"
    ) as e:
        t.step(0.1, np.array([1.0, -4.0, 1.0]))
    assert e.value.source is not None and "inner.sqrt(v)" in e.value.source.text
    with pytest.raises(
        AnomalyError, match=r"test_trainer.py:\d+ \(middle\): div gave inf .* in the backward pass"
    ) as e:
        t.step(0.1, np.array([1.0, 0.0, 1.0]))  # √0 is fine, its derivative is not
    assert e.value.source is not None and "inner.sqrt(v)" in e.value.source.text
    assert np.array_equal(t.get_params(), np.ones(3))
    t.step(0.1, np.array([1.0, 4.0, 1.0]))


def test_an_interrupt_during_the_computation_leaves_everything_as_it_was() -> None:
    stop = False

    def interrupted(ops: Any, params: Any, x: Any, y: Any) -> Any:
        out = loss(ops, params, x, y)
        if stop:
            raise KeyboardInterrupt
        return out

    t = scalar_trainer(interrupted, values(), Spec("B 3"), Spec("B 2"), options=FLOAT64)
    stop = True
    with pytest.raises(KeyboardInterrupt):
        t.step(0.1, *batch())
    assert same(t.get_params(), values())


def test_state_commits_with_the_step() -> None:
    def counted(ops: Any, params: Any, state: Any, x: Any) -> Any:
        new = {"seen": ops.add(state["seen"], ops.const(1.0))}
        return ops.sum(ops.mul(params, x)), Aux(state=new, metrics={"mean": ops.reduce_mean(x)})

    t = scalar_trainer(counted, np.ones(3), Spec("3"), options=FLOAT64, state={"seen": np.array(0.0)})
    t.step(0.1, np.ones(3))
    t.step(0.1, 2 * np.ones(3))
    assert float(t.state["seen"]) == 2.0
    assert float(t.last_metrics["mean"]) == 2.0
    t.forward(np.ones(3))
    assert float(t.state["seen"]) == 2.0  # evaluation commits nothing

    def forgetful(ops: Any, params: Any, state: Any, x: Any) -> Any:
        return ops.sum(ops.mul(params, x)), Aux(state={})

    with pytest.raises(ValidationError, match="the new state is not built like the old one: seen is missing"):
        scalar_trainer(forgetful, np.ones(3), Spec("3"), state={"seen": np.array(0.0)})


@pytest.mark.parametrize(
    ("new", "spec", "told"),
    [
        (lambda ops, old, x: ops.concat([old, old]), "3", r"the new state m is \(6,\) float\d+, .* is \(3,\) float"),
        (lambda ops, old, x: ops.sum(old), "3", r"the new state m is \(\) float\d+, .* is \(3,\) float"),
        (lambda ops, old, x: ops.cast(old, dtype="int64"), "3", r"the new state m is \(3,\) int64, .* \(3,\) float"),
        (lambda ops, old, x: x, "B", r"the new state m is \(B,\) float64, .* is \(3,\) float64"),
    ],
)
def test_a_state_that_changes_its_type_is_refused(new: Any, spec: str, told: str) -> None:
    """Before the first step by the check, and by the step where nothing was checked; nothing is changed then."""

    def program(ops: Any, params: Any, state: Any, x: Any) -> Any:
        return ops.sum(ops.mul(params, params)), Aux(state={"m": new(ops, state["m"], x)})

    state = {"m": np.zeros(3)}
    if spec == "3":
        with pytest.raises(ValidationError, match=told):
            scalar_trainer(program, np.ones(3), Spec(spec), state=state, options=FLOAT64)
    for backend in ("eager", "compiled"):
        options = Options(dtype="float64", validate=False, backend=backend)  # type: ignore[arg-type]
        t = scalar_trainer(program, np.ones(3), state=state, options=options)
        with pytest.raises(ShapeError, match="the new state m is"):
            t.step(0.1, np.ones(4 if spec == "B" else 3))
        np.testing.assert_array_equal(t.get_params(), np.ones(3))
        assert same(t.state, state)


def test_running_statistics_of_batch_norm() -> None:
    def program(ops: Any, params: Any, state: Any, x: Any, *, train: bool) -> Any:
        if train:
            y, mean, variance = ops.batch_norm(x, params["gamma"], params["beta"])
            keep = 0.9
            state = {
                "mean": ops.add(ops.scale(state["mean"], c=keep), ops.scale(mean, c=1 - keep)),
                "variance": ops.add(ops.scale(state["variance"], c=keep), ops.scale(variance, c=1 - keep)),
            }
        else:
            y = ops.batch_norm_eval(x, params["gamma"], params["beta"], state["mean"], state["variance"])
        return ops.sum(ops.mul(y, y)), Aux(state=state)

    start = {"mean": np.zeros(2), "variance": np.ones(2)}
    params = {"gamma": np.ones(2), "beta": np.zeros(2)}
    t = scalar_trainer(program, params, Spec("B 2 4"), options=FLOAT64, state=start)
    x = np.random.default_rng(0).standard_normal((3, 2, 4)) * 3 + 1
    t.step(0.0, x)
    flat = x.transpose(1, 0, 2).reshape(2, -1)
    np.testing.assert_allclose(t.state["mean"], 0.1 * flat.mean(1), rtol=1e-12)
    np.testing.assert_allclose(t.state["variance"], 0.9 + 0.1 * flat.var(1, ddof=1), rtol=1e-12)
    normal = (x - t.state["mean"][:, None]) / np.sqrt(t.state["variance"] + 1e-5)[:, None]
    assert float(t.forward(x)) == pytest.approx((normal**2).sum(), rel=1e-12)


def test_each_step_draws_afresh_and_reproducibly() -> None:
    def noisy(ops: Any, params: Any, x: Any) -> Any:
        return ops.sum(ops.mul(ops.mul(params, x), ops.rand_uniform(shape=(4,))))

    def run() -> list[float]:
        t = scalar_trainer(noisy, np.ones(4), Spec("4"), options=FLOAT64)
        return [float(t.step(0.0, np.ones(4))) for _ in range(3)]

    first = run()
    assert first == run()
    assert len(set(first)) == 3


def test_a_parameter_used_twice_sums_its_gradients_and_is_updated_once() -> None:
    def twice(ops: Any, params: Any, x: Any) -> Any:
        return ops.sum(ops.add(ops.mul(params, x), ops.mul(params, params)))

    t = scalar_trainer(twice, np.array([2.0]), Spec("1"), options=FLOAT64)
    t.step(0.1, np.array([3.0]))
    np.testing.assert_allclose(t.get_params(), [2.0 - 0.1 * (3.0 + 4.0)])


def test_set_params_is_whole_or_nothing() -> None:
    t = trainer()
    with pytest.raises(ShapeError, match=r"w is \(2, 3\) but its new value is \(3, 2\)"):
        t.set_params({"b": np.ones(2), "w": np.ones((3, 2))})
    assert same(t.get_params(), values())
    with pytest.raises(UsageError, match="b is missing"):
        t.set_params({"w": np.ones((2, 3))})
    new = {"w": np.zeros((2, 3)), "b": np.ones(2)}
    t.set_params(new)
    new["w"][...] = 7.0
    assert float(t.forward(np.ones((1, 3)), np.zeros((1, 2)))) == 1.0


def test_get_params_gives_arrays_of_the_callers_own() -> None:
    t, (x, y) = trainer(), batch()
    taken = t.get_params()
    taken["w"][...] = 99.0
    assert same(t.get_params(), values())
    given = values()
    other = scalar_trainer(loss, given, options=FLOAT64)
    given["w"][...] = 99.0
    assert same(other.get_params(), values())
    t.step(0.1, x, y)


def test_an_optimizer_state_of_another_trainer_is_refused() -> None:
    t, (x, y) = trainer(), batch()
    with pytest.raises(UsageError, match="does not say of which optimizer and parameters"):
        t.step_with(optim.adam(lr=0.1), OptimizerState(0, ()), x, y)


def test_shape_check_backend_is_a_dry_run() -> None:
    t = trainer(options=Options(backend="shape_check"))
    x, y = batch()
    assert t.step(0.1, x, y).shape == ()
    np.testing.assert_array_equal(t.get_params()["w"], values()["w"].astype(np.float32))


def test_refs_may_not_leak_out_of_a_run() -> None:
    kept: list[Any] = []

    def leaking(ops: Any, x: Any) -> Any:
        kept.append(x)
        return ops.neg(x)

    opstage.run(leaking, np.ones(2))
    with pytest.raises(ProgramError, match="refs of two interpreters were mixed"):
        opstage.run(lambda ops, x: ops.add(x, kept[0]), np.ones(2))
    with pytest.raises(ProgramError, match="was used after"):
        kept[0] + kept[0]


def test_evaluate_runs_another_program_of_the_parameters() -> None:
    t, (x, y) = trainer(), batch()
    out = t.evaluate(lambda ops, params, x, y: {"p": ops.linear(params["w"], params["b"], x)}, x, y)
    np.testing.assert_allclose(out["p"], x @ values()["w"].T + values()["b"])
    for trainer_ in (t, scalar_trainer(loss, values(), options=FLOAT64)):  # fewer arguments than the loss takes
        p = trainer_.evaluate(lambda ops, params, x: ops.linear(params["w"], params["b"], x), x[:2])
        np.testing.assert_allclose(p, (x @ values()["w"].T + values()["b"])[:2])


def test_clipping_is_part_of_the_step() -> None:
    t, (x, y) = trainer(clip=optim.clip.by_global_norm(0.5)), batch()
    _, grads = numpy_gradients(values(), x, y)
    norm = np.sqrt(sum((g**2).sum() for g in grads.values()))
    t.step(0.1, x, y)
    factor = min(1.0, 0.5 / (norm + 1e-6))
    for k, g in grads.items():
        np.testing.assert_allclose(t.get_params()[k], values()[k] - 0.1 * factor * g, rtol=1e-12)


@pytest.mark.parametrize(("backend", "apart", "together"), [("eager", 1, 3), ("compiled", 0, 1)])
def test_a_step_takes_apart_what_users_hand_it_alone(backend: Any, apart: int, together: int) -> None:
    """Results are flattened, parameters and batch built for the loss; a batch of arrays is no tree, nor is anything."""
    optimizer, t = optim.adam(0.1), trainer(options=Options(backend=backend))
    state = t.init_optim(optimizer)
    for _ in range(2):
        t.advance(optimizer, state, *batch())
    calls: Counter[str] = Counter()

    def count(frame: Any, event: str, arg: Any) -> None:
        if event == "call" and frame.f_code in names:
            calls[names[frame.f_code]] += 1

    names = {trees.flatten.__code__: "apart", trees.unflatten.__code__: "together"}
    given = batch()
    sys.setprofile(count)
    t.advance(optimizer, state, *given)
    sys.setprofile(None)
    assert (calls["apart"], calls["together"]) == (apart, together)


def test_a_step_trains_what_was_trained_when_it_began() -> None:
    """Another thread may freeze a parameter meanwhile; here an array of the batch does, as it is read."""
    x, y = batch()
    optimizer, one, other = optim.adam(0.1), trainer(), trainer()

    class Freezing:
        def __array__(self, *args: Any, **named: Any) -> Any:
            one.params["w"].requires_grad = False
            return x

    for t, given in ((one, Freezing()), (other, x)):
        state = t.init_optim(optimizer)
        t.advance(optimizer, state, given, y)
    assert not one.params["w"].requires_grad
    assert same(one.get_params(), other.get_params())
