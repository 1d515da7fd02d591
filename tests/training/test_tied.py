"""One Param at several places of a tree is one parameter, everywhere; one array at several places is refused."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Param, ScalarModule, ScalarModuleDef, ScalarTrainer, Session, Spec, UsageError, optim
from opstage.init import Declaration, Plan, build, flat, keys, normal, zeros
from opstage.ops import trees
from opstage.ops.trees import flatten
from opstage.training import checkpoint
from opstage.training.memory import step_memory
from opstage.training.parameters import (
    cast,
    get_values,
    make_params,
    set_values,
    sgd_step,
    sgd_step_fast,
    shared_arrays,
)
from opstage.training.program_check import check_program
from opstage.training.snapshot import TrainerValues, take_snapshot

WIDTH = 4


def loss(ops: Any, params: Any, x: Any) -> Any:
    """An autoencoder with a decoder that may be its encoder: mean of (tanh(x Aᵀ + c) B - x)²."""
    h = ops.tanh(ops.linear(params["encoder"], params["offset"], x))
    back = ops.matmul(h, params["decoder"])
    return ops.mse_loss(back, x)


def untied(ops: Any, params: Any, x: Any) -> Any:
    """The same with one parameter that is read twice: what a tied tree must be equal to, bit for bit."""
    both = params["encoder"]
    return loss(ops, {"encoder": both, "decoder": both, "offset": params["offset"]}, x)


def start(dtype: str = "float32") -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(5)
    return rng.standard_normal((3, WIDTH)).astype(dtype), rng.standard_normal(3).astype(dtype)


def batch(seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal((6, WIDTH)).astype(np.float32)


def tied_tree(dtype: str = "float32", **flags: Any) -> dict[str, Any]:
    """Paths are sorted, so the parameter's first place, and its name, is `decoder`."""
    w, c = start(dtype)
    both = Param(w, dtype=dtype, **flags)
    return {"encoder": both, "decoder": both, "offset": Param(c, dtype=dtype)}


def single_tree(dtype: str = "float32") -> dict[str, Any]:
    w, c = start(dtype)
    return {"encoder": Param(w, dtype=dtype), "offset": Param(c, dtype=dtype)}


OPTIONS = {
    "eager": Options(),
    "eager without fast kernels": Options(fast_kernels=False),
    "eager float64": Options(dtype="float64"),
    "eager with anomaly detection": Options(detect_anomaly=True),
    "compiled": Options(backend="compiled"),
}

OPTIMIZERS: dict[str, Callable[[], optim.Optimizer]] = {
    "sgd": lambda: optim.sgd(0.1, weight_decay=0.1),
    "momentum": lambda: optim.momentum(0.1),
    "nesterov": lambda: optim.nesterov(0.1),
    "adagrad": lambda: optim.adagrad(0.1),
    "rmsprop": lambda: optim.rmsprop(0.1),
    "adam": lambda: optim.adam(0.1),
    "adamw": lambda: optim.adamw(0.1),
    "adadelta": lambda: optim.adadelta(),
    "muon": lambda: optim.muon(0.1, others=optim.adamw(0.1)),
}

CLIPS = {
    "none": None,
    "by value": optim.clip.by_value(0.01),
    "by norm": optim.clip.by_norm(0.05),
    "by global norm": optim.clip.by_global_norm(0.05),
}


def same(tied: ScalarTrainer, single: ScalarTrainer) -> None:
    ours, theirs = tied.get_params(), single.get_params()
    assert ours["encoder"].tobytes() == ours["decoder"].tobytes() == theirs["encoder"].tobytes()
    assert ours["offset"].tobytes() == theirs["offset"].tobytes()


# Training -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_gradient_is_the_sum_over_the_places(options: Options) -> None:
    """By hand, in float64: the gradients that JAX would give of the two places, added."""
    w, c = (x.astype(np.float64) for x in start())
    x = batch().astype(np.float64)
    h = np.tanh(x @ w.T + c)
    d = 2 * (h @ w - x) / x.size
    dz = (d @ w.T) * (1 - h**2)
    expected = h.T @ d + dz.T @ x
    trainer = opstage.scalar_trainer(loss, tied_tree(options.dtype), options=options)
    value, gradients = trainer.loss_and_backward(batch())
    np.testing.assert_allclose(value, np.mean((h @ w - x) ** 2), rtol=1e-5)
    np.testing.assert_allclose(gradients["encoder"], expected, rtol=2e-5, atol=1e-6)
    assert gradients["decoder"] is gradients["encoder"]
    trainer.step(0.5, batch())
    np.testing.assert_allclose(trainer.get_params()["decoder"], w - 0.5 * expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["eager", pytest.param("compiled", marks=pytest.mark.slow)])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_every_optimizer_updates_it_once(make: Callable[[], optim.Optimizer], backend: str) -> None:
    optimizer, options = make(), Options(backend=backend)
    tied = opstage.scalar_trainer(loss, tied_tree(options.dtype), options=options)
    single = opstage.scalar_trainer(untied, single_tree(options.dtype), options=options)
    ours, theirs = tied.init_optim(optimizer), single.init_optim(optimizer)
    assert [len(slots) for slots in ours.slots] == [len(slots) for slots in theirs.slots]
    for seed in range(4):  # a step that keeps its state, and one that moves it on in place
        steps = (tied.advance, single.advance) if seed % 2 else (tied.train_step, single.train_step)
        one, other = (step(optimizer, state, batch(seed)) for step, state in zip(steps, (ours, theirs)))
        ours, theirs = one.state, other.state
        assert one.loss == other.loss
    same(tied, single)


@pytest.mark.parametrize("backend", ["eager", pytest.param("compiled", marks=pytest.mark.slow)])
@pytest.mark.parametrize("clip", CLIPS.values(), ids=CLIPS)
def test_a_tied_gradient_is_clipped_as_one(clip: Any, backend: str) -> None:
    options = Options(backend=backend)
    tied = opstage.scalar_trainer(loss, tied_tree(), options=options, clip=clip)
    single = opstage.scalar_trainer(untied, single_tree(), options=options, clip=clip)
    for seed in range(3):
        assert tied.step(0.5, batch(seed)) == single.step(0.5, batch(seed))
    same(tied, single)


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_named_steps_and_evaluation(backend: str) -> None:
    options = Options(backend=backend)
    tied = opstage.scalar_trainer(loss, tied_tree(), options=options)
    single = opstage.scalar_trainer(untied, single_tree(), options=options)
    for each in (tied, single):
        each.step(0.1, batch())
        each.adam_step(0.1, 0.9, 0.99, 1e-8, batch(1))
        each.adamw_step(0.1, 0.9, 0.99, 1e-8, 0.1, batch(2))
    same(tied, single)
    assert tied.forward(batch()) == single.forward(batch())
    assert tied.evaluate(loss, batch()) == single.evaluate(untied, batch())
    assert tied.parameter_count == single.parameter_count == 3 * WIDTH + 3


def test_three_places_in_lists_and_a_tree_that_is_one_leaf() -> None:
    def cube(ops: Any, params: Any, x: Any) -> Any:
        a, b = params["list"]
        return ops.sum(ops.mul(ops.mul(ops.mul(a, b), params["c"]), x))

    w = Param(np.full(3, 2.0))
    trainer = opstage.scalar_trainer(cube, {"list": [w, w], "c": w}, options=Options(dtype="float64"))
    assert trainer.params["list"][1] is w and trainer.parameter_count == 3
    trainer.step(0.01, np.ones(3))
    np.testing.assert_allclose(w.value, 2 - 0.01 * 3 * 4)
    assert list(trainer.export().params) == ["c"]
    whole = opstage.scalar_trainer(lambda ops, params, x: ops.sum(ops.mul(params, x)), Param(np.ones(3, np.float32)))
    whole.step(0.5, np.ones(3))
    assert list(whole.export().params) == [""]


def test_a_loss_with_state_and_a_frozen_tied_parameter() -> None:
    def stateful(ops: Any, params: Any, state: Any, x: Any) -> Any:
        return loss(ops, params, x), opstage.Aux(state={"n": ops.add(state["n"], state["n"])})

    tree = tied_tree(requires_grad=False)
    before = tree["encoder"].value
    trainer = opstage.scalar_trainer(stateful, tree, state={"n": np.ones(())})
    assert trainer.backward(batch())["encoder"] is None and trainer.backward(batch())["decoder"] is None
    trainer.step(0.5, batch())
    assert np.array_equal(tree["encoder"].value, before) and trainer.state["n"] == 2
    tree["encoder"].requires_grad = True
    optimizer = optim.sgd(0.5)
    trainer.step_with(optimizer, trainer.init_optim(optimizer), batch())
    assert not np.array_equal(tree["encoder"].value, before)
    assert trainer.get_params()["encoder"].tobytes() == trainer.get_params()["decoder"].tobytes()


def test_flags_that_contradict_each_other() -> None:
    for flags in ({"encoder": True, "decoder": False, "offset": True}, [False, True, True]):
        with pytest.raises(UsageError, match="decoder and encoder are one parameter, but are given two flags"):
            opstage.scalar_trainer(loss, tied_tree(), requires_grad=flags)
    for agreed in ({"encoder": False, "decoder": False, "offset": True}, [False, False, True], [False, True]):
        assert opstage.scalar_trainer(loss, tied_tree(), requires_grad=agreed).backward(batch())["encoder"] is None
    with pytest.raises(UsageError, match=r"requires_grad has 1 flags for 2 parameters; the first.*is offset"):
        opstage.scalar_trainer(loss, tied_tree(), requires_grad=[True])


# Values in and out --------------------------------------------------------------------------------------------------


def test_values_are_one_array_and_must_agree() -> None:
    trainer = opstage.scalar_trainer(loss, tied_tree())
    values = trainer.get_params()
    assert values["encoder"] is values["decoder"]
    for tree in (values, trainer.backward(batch()), Plan([normal(), zeros]).materialise(tied_tree())):
        assert tree["encoder"] is tree["decoder"] and tree["offset"].flags.writeable
        with pytest.raises(ValueError, match="read-only"):  # or what is added at each place would be added twice
            tree["encoder"] += 1
    trainer.set_params(values)
    trainer.set_params({**values, "encoder": values["encoder"].copy()})
    other = {**values, "encoder": values["encoder"] + 1}
    for change in (lambda: trainer.set_params(other), lambda: set_values(trainer.params, other)):
        with pytest.raises(UsageError, match="decoder and encoder are one parameter, but are given two values"):
            change()
    assert trainer.get_params()["encoder"].tobytes() == values["encoder"].tobytes()
    with pytest.raises(UsageError, match="decoder and encoder are one array"):  # not untied in silence
        opstage.scalar_trainer(loss, values)


def test_nan_agrees_with_nan_and_zero_not_with_minus_zero() -> None:
    w = Param(np.zeros(2, np.float32))
    set_values({"a": w, "b": w}, {"a": np.full(2, np.nan), "b": np.full(2, np.nan)})
    assert np.isnan(w.value).all()
    with pytest.raises(UsageError, match="two values"):
        set_values({"a": w, "b": w}, {"a": np.zeros(2), "b": np.full(2, -0.0)})


def test_checkpoints_hold_one_entry_and_resume(tmp_path: Path) -> None:
    optimizer = optim.adamw(0.1)
    trainer, going_on = (opstage.scalar_trainer(loss, tied_tree()) for _ in range(2))
    state = trainer.init_optim(optimizer)
    trainer.advance(optimizer, state, batch())
    trainer.adam_step(0.1, 0.9, 0.99, 1e-8, batch())
    checkpoint.save(tmp_path, take_snapshot(trainer, optimizer, state))
    loaded = checkpoint.load(tmp_path)
    assert sorted(loaded.trainer.params) == ["decoder", "offset"]
    assert loaded.trainer.tied == {"decoder": ("decoder", "encoder")}
    resumed = checkpoint.restore(going_on, loaded, optimizer)
    assert resumed is not None
    for seed in range(3):
        first = trainer.advance(optimizer, state, batch(seed))
        assert first.loss == going_on.advance(optimizer, resumed, batch(seed)).loss
    same(trainer, going_on)
    apart = opstage.scalar_trainer(loss, get_values(tied_tree()) | {"encoder": start()[0]})
    with pytest.raises(UsageError, match="encoder is missing: it was one parameter with decoder"):
        checkpoint.restore(apart, loaded)


def test_what_was_saved_apart_is_read_where_it_agrees() -> None:
    w, c = start()
    apart = opstage.scalar_trainer(loss, {"encoder": w, "decoder": w.copy(), "offset": c})
    trainer = opstage.scalar_trainer(loss, tied_tree())
    trainer.set_params({"encoder": w * 0, "decoder": w * 0, "offset": c})
    trainer.restore(apart.export())
    np.testing.assert_array_equal(trainer.get_params()["encoder"], w)
    by_other_place = {"encoder": w + 1, "offset": c}
    trainer.restore(TrainerValues(by_other_place))
    np.testing.assert_array_equal(trainer.get_params()["decoder"], w + 1)
    apart.adam_step(0.1, 0.9, 0.99, 1e-8, batch())
    before = trainer.get_params()
    with pytest.raises(UsageError, match="the saved parameters differ at decoder and encoder, which are one parameter"):
        trainer.restore(apart.export())
    moments = TrainerValues(trainer.export().params, moments=apart.export().moments)
    with pytest.raises(UsageError, match="the saved moments of adam differ at decoder and encoder"):
        trainer.restore(moments)
    assert trainer.get_params()["encoder"].tobytes() == before["encoder"].tobytes()


# Reports ------------------------------------------------------------------------------------------------------------


def test_a_check_says_what_is_tied_and_counts_it_once() -> None:
    trainer = opstage.scalar_trainer(loss, tied_tree())
    reports = [
        opstage.check(loss, tied_tree(), Spec("B 4")),
        opstage.check_step(loss, tied_tree(), Spec("B 4"), optimizer=optim.adam()),
        trainer.report(Spec("B 4"), optimizer=optim.adam()),
        check_program(loss, opstage.ops.spec.Shapes({"x": Spec("B 4")}, lambda: tied_tree())).report,
    ]
    for report in reports:
        assert report.ok and not report.warnings
        assert report.parameters == 15 and report.table.total.parameters == 15
        assert report.tied == (("params.decoder", "params.encoder"),)
        assert [name for name, _ in report.inputs if name.startswith("params.")] == ["params.decoder", "params.offset"]
        for text in (str(report), str(report.table), report._repr_html_(), report.to_json(), str(report.at(B=2).table)):
            assert "params.encoder" in text
        assert "tied, counted once: params.decoder = params.encoder" in str(report.at(B=2).table)
    single = opstage.check_step(untied, single_tree(), Spec("B 4"), optimizer=optim.adam())
    assert str(reports[1].cost) == str(single.cost) and reports[1].ops == single.ops
    step, one = (
        step_memory(f, tree, Spec("B 4"), optimizer=optim.adam()).at(B=8)
        for f, tree in ((loss, tied_tree()), (untied, single_tree()))
    )
    assert step == one


def test_a_finding_names_all_places() -> None:
    (finding,) = opstage.check_step(loss, tied_tree(), Spec("B 5")).errors[:1]
    assert "weight is params.decoder = params.encoder (3, 4)" in str(finding)


def test_a_torch_module_that_shares_a_tensor_is_read_as_tied() -> None:
    class Tensor:
        shape, dtype = (4, 4), "torch.float32"

        def data_ptr(self) -> int:
            return 64

        def stride(self) -> tuple[int, ...]:
            return (4, 1)

    class Net:
        def state_dict(self) -> dict[str, Any]:
            """As torch.nn.Module gives it: new tensors that look at the memory of the parameters."""
            return {name: Tensor() for name in ("a.weight", "b.weight")}

    def program(ops: Any, params: Any, x: Any) -> Any:
        return ops.sum(ops.linear(params["b.weight"], None, ops.linear(params["a.weight"], None, x)))

    checked = check_program(program, opstage.ops.spec.Shapes({"x": Spec("B 4")}, Net))
    assert checked.report.parameters == 16 and checked.report.tied == (("params.a.weight", "params.b.weight"),)


# Trees of Params ----------------------------------------------------------------------------------------------------


def test_trees_keep_the_tie() -> None:
    w = Param(np.ones(3, np.float32), name="w")
    tree = {"a": w, "b": [w]}
    assert make_params(tree)["b"][0] is w
    wide = cast(tree, "float64")
    assert wide["a"] is wide["b"][0] and wide["a"].dtype == np.float64
    values = get_values(tree)
    assert values["a"] is values["b"][0]
    arrays = cast(values, "float64")
    assert arrays["a"] is arrays["b"][0] and arrays["a"].dtype == np.float64


@pytest.mark.parametrize("step", [sgd_step, sgd_step_fast])
def test_one_sgd_step_of_a_tied_tree(step: Any) -> None:
    g, h = np.full(3, 2.0), np.full(3, 5.0)
    for gradients in ({"a": g, "b": g}, {"a": g, "b": None}, {"a": None, "b": g}):
        w = Param(np.ones(3), dtype="float64")
        step({"a": w, "b": w}, 0.1, gradients)
        np.testing.assert_allclose(w.value, 0.8)
    w = Param(np.ones(3), dtype="float64")
    for gradients in ({"a": g, "b": h}, {"a": g, "b": g.copy()}):
        with pytest.raises(UsageError, match=r"a and b are one parameter, but are given two gradients.*add them"):
            step({"a": w, "b": w}, 0.1, gradients)
    with pytest.raises(UsageError, match="parameter a requires a gradient but is given None"):
        step({"a": w, "b": w}, 0.1, {"a": None, "b": None})
    assert w.version == 0
    trainer = opstage.scalar_trainer(loss, tied_tree())
    expected = opstage.scalar_trainer(loss, tied_tree())
    step(trainer.params, 0.5, trainer.backward(batch()))
    expected.step(0.5, batch())
    same(trainer, expected)


def test_copies_of_a_tree_keep_the_tie_and_nothing_else() -> None:
    for options in (Options(), Options(backend="compiled")):
        trainer = opstage.scalar_trainer(loss, tied_tree(), options=options)
        trainer.step(0.5, batch())
        tree = trainer.params
        copies = [
            copy.deepcopy(tree),
            pickle.loads(pickle.dumps(tree)),
            {**tree, "encoder": copy.copy(tree["encoder"])},
        ]
        before = tree["encoder"].value.copy()
        trainer.step(0.5, batch())
        trainer.step(0.5, batch())
        assert copies[0]["encoder"] is copies[0]["decoder"] and copies[1]["encoder"] is copies[1]["decoder"]
        assert not np.array_equal(tree["encoder"].value, before)
        for each in copies:
            np.testing.assert_array_equal(each["encoder"].value, before)
            assert each["encoder"].requires_grad and each["encoder"].name == tree["encoder"].name


def test_a_param_where_a_value_is_wanted() -> None:
    for ask in (opstage.run, opstage.value_and_grad):
        with pytest.raises(
            UsageError, match=r"argument params\.decoder: it is a parameter of shape \(3, 4\); pass its value"
        ):
            ask(loss, tied_tree(), batch())


# Modules and plans --------------------------------------------------------------------------------------------------


def test_modules_keep_the_tie() -> None:
    defined = ScalarModuleDef(tied_tree(), loss)
    twice = defined.instantiate_with(lambda array: (array * 2).astype(np.float32))
    assert twice.trainer.params["encoder"] is twice.trainer.params["decoder"]
    np.testing.assert_allclose(twice.params()["encoder"], start()[0] * 2)
    planned = defined.instantiate_with_plan(
        Options(), Plan({"encoder": normal(), "decoder": normal(), "offset": zeros})
    )
    assert planned.trainer.params["encoder"] is planned.trainer.params["decoder"]
    assert planned.trainer.parameter_count == 15
    for listed in ([normal(), zeros], [normal(), normal(), zeros]):
        module = defined.instantiate_with_init(Options(), listed)
        assert module.params()["encoder"].tobytes() == planned.params()["encoder"].tobytes()
    made: ScalarModule = defined.instantiate()
    made.step(0.5, batch())
    assert made.params()["encoder"] is not None and made.trainer.parameter_count == 15


def test_frozen_params_stay_frozen_by_a_plan() -> None:
    tree = tied_tree(requires_grad=False)
    module = ScalarModuleDef(tree, loss).instantiate_with_init(Options(), [normal(), zeros])
    assert not module.trainer.params["encoder"].requires_grad and module.trainer.params["offset"].requires_grad


CONTRADICTIONS: dict[str, tuple[Any, str]] = {
    "scheme": ({"encoder": normal(), "decoder": zeros, "offset": zeros}, "decoder and encoder .*two initialisers"),
    "std": ({"encoder": normal(), "decoder": normal(std=2), "offset": zeros}, "two initialisers"),
    "seed": ({"encoder": normal(seed=1), "decoder": normal(seed=2), "offset": zeros}, "two initialisers"),
    "list": ([zeros, normal(), zeros], "two initialisers"),
    "too few": ([zeros], "the plan has 1 initialisers for 2 parameters: parameter offset"),
    "values": ({"encoder": flat(np.arange(12.0)), "decoder": flat(np.zeros(12)), "offset": zeros}, "two initialisers"),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_initialisers_that_contradict_each_other(case: str) -> None:
    plan, message = CONTRADICTIONS[case]
    with pytest.raises(UsageError, match=message):
        ScalarModuleDef(tied_tree(), loss).instantiate_with_plan(Options(), Plan(plan))


def test_initialisers_that_agree() -> None:
    values = np.arange(12.0)
    plan = Plan({"encoder": flat(values), "decoder": flat(values.reshape(3, 4)), "offset": zeros})
    made = plan.materialise(tied_tree())
    assert made["encoder"] is made["decoder"]
    np.testing.assert_array_equal(made["encoder"], values.reshape(3, 4))
    seeds = keys(0, tied_tree())
    assert seeds["encoder"] == seeds["decoder"] != seeds["offset"]


def test_a_declaration_is_a_recipe() -> None:
    declared = Declaration((3, WIDTH), normal())
    tree = {"encoder": declared, "decoder": declared, "offset": Declaration((3,), zeros)}
    made = build(tree)
    assert not np.array_equal(made["encoder"], made["decoder"])
    module = ScalarModuleDef(tree, loss).instantiate()
    assert module.trainer.parameter_count == 27
    assert opstage.check_step(loss, tree, Spec("B 4")).tied == ()
    spec = Spec((3, WIDTH))
    assert opstage.check_step(loss, {"encoder": spec, "decoder": spec, "offset": (3,)}, Spec("B 4")).parameters == 27


# One array at two places --------------------------------------------------------------------------------------------


def shared_trees() -> dict[str, dict[str, Any]]:
    w, c = start()
    wide = np.zeros((3, 2 * WIDTH), np.float32)
    param = Param(w)
    return {
        "one array": {"encoder": w, "decoder": w, "offset": c},
        "a view of all": {"encoder": w, "decoder": w[:], "offset": c},
        "a reversed view": {"encoder": w, "decoder": w[::-1], "offset": c},
        "overlapping columns": {"encoder": wide[:, 1:5], "decoder": wide[:, 3:7], "offset": c},
        "a row": {"encoder": w, "decoder": w.copy(), "offset": w[:, 0]},
        "a view of a Param's value": {"encoder": param, "decoder": param.value, "offset": c},
        "the bytes of another dtype": {"encoder": w, "decoder": w.view(np.int32).view(np.float32), "offset": c},
    }


@pytest.mark.parametrize("name", shared_trees())
def test_an_array_at_two_places_is_refused(name: str) -> None:
    for make in (
        lambda tree: opstage.scalar_trainer(loss, tree),
        lambda tree: opstage.scalar_trainer(loss, tree, requires_grad=False),
        lambda tree: opstage.scalar_trainer(loss, tree, options=Options(backend="compiled")),
        lambda tree: ScalarModule.create(loss, tree),
        lambda tree: ScalarModuleDef(tree, loss).instantiate(),
        lambda tree: ScalarModuleDef(tree, loss).instantiate_with(lambda array: array.copy()),
        lambda tree: ScalarModuleDef(tree, loss).instantiate_with_init(Options(), [zeros, zeros, zeros]),
        make_params,
    ):
        tree = shared_trees()[name]
        with pytest.raises(UsageError, match=r"(one array|share memory).*make one Param of it.*copy"):
            make(tree)


@pytest.mark.parametrize("name", shared_trees())
def test_a_check_warns_of_an_array_at_two_places(name: str) -> None:
    tree = shared_trees()[name]
    by_function = check_program(loss, opstage.ops.spec.Shapes({"x": Spec("B 4")}, lambda: tree)).report
    forward = check_program(loss, opstage.ops.spec.Shapes({"x": Spec("B 4")}, tree), train=False).report
    for report in (opstage.check_step(loss, tree, Spec("B 4")), by_function, forward):
        assert report.ok and [warning.rule for warning in report.warnings] == ["shared-array"]
        assert report.parameters == 27


def apart_trees() -> dict[str, dict[str, Any]]:
    w, c = start()
    wide = np.zeros((3, 2 * WIDTH), np.float32)
    flat_memory = np.zeros(24, np.float32)
    return {
        "a copy": {"encoder": w, "decoder": w.copy(), "offset": c},
        "halves": {"encoder": wide[:, :WIDTH], "decoder": wide[:, WIDTH:], "offset": c},
        "every other column": {"encoder": wide[:, ::2], "decoder": wide[:, 1::2], "offset": c},
        "neighbours": dict(zip(("encoder", "decoder"), flat_memory.reshape(2, 3, 4))) | {"offset": c},
    }


@pytest.mark.parametrize("name", apart_trees())
def test_arrays_of_their_own_pass(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert opstage.scalar_trainer(loss, apart_trees()[name]).parameter_count == 27


def test_numbers_empty_arrays_and_equal_values_share_nothing() -> None:
    empty, one = np.zeros((0, 3)), np.float32(1.0)
    tree = {"a": empty, "b": empty, "c": one, "d": one, "e": 1.0, "f": 1.0, "g": np.ones(()), "h": np.ones(())}
    assert shared_arrays(tree) == []


def test_many_shared_arrays_are_listed_shortly() -> None:
    block = {"w": np.zeros((2, 2)), "b": np.zeros(2)}
    with pytest.raises(UsageError, match=r"0\.b and 1\.b are one array.*; and 4 more: make one Param"):
        make_params([block] * 5)


def test_batches_and_new_values_may_share() -> None:
    """Only among the parameters does an array at two places have two meanings."""
    w, c = start()
    trainer = opstage.scalar_trainer(loss, {"encoder": w, "decoder": w.copy(), "offset": c})
    trainer.set_params({"encoder": w, "decoder": w, "offset": c})
    trainer.step(0.5, batch())
    assert not np.array_equal(trainer.get_params()["encoder"], trainer.get_params()["decoder"])

    def product(ops: Any, a: Any, b: Any) -> Any:
        return ops.sum(ops.mul(a, b))

    _, (da, db) = opstage.value_and_grad(product, w, w, wrt=(0, 1))
    np.testing.assert_array_equal(da, w)
    np.testing.assert_array_equal(db, w)


def test_value_and_grad_gives_the_gradients_of_the_places() -> None:
    w, c = start("float64")
    options = Options(dtype="float64")
    tree = {"encoder": w, "decoder": w, "offset": c}
    _, places = opstage.value_and_grad(loss, tree, batch(), options=options)
    whole = opstage.scalar_trainer(loss, tied_tree("float64"), options=options).backward(batch())
    np.testing.assert_allclose(places["encoder"] + places["decoder"], whole["encoder"], rtol=1e-12)
    assert not np.allclose(places["encoder"], whole["encoder"])


# Sessions -----------------------------------------------------------------------------------------------------------


NAMED: dict[str, tuple[str, tuple[float, ...]]] = {
    "sgd_step_all": ("step", ()),
    "adam_step_all": ("adam_step", (0.9, 0.999, 1e-8)),
    "adamw_step_all": ("adamw_step", (0.9, 0.999, 1e-8, 0.01)),
}
"""The step of a trainer that is a session's, and its numbers after the rate."""


@pytest.mark.parametrize("backend", ["eager", pytest.param("compiled", marks=pytest.mark.slow)])
@pytest.mark.parametrize("step", NAMED)
def test_a_session_updates_a_tied_parameter_once(step: str, backend: str) -> None:
    session = Session(Options(backend=backend))
    w, c = (session.param(value) for value in start())
    trainer = opstage.scalar_trainer(loss, tied_tree(), options=Options(backend=backend))
    for seed in range(3):
        refs = {"encoder": session.use(w), "decoder": session.use(w), "offset": session.use(c)}
        session.backward(loss(session, refs, session.input(batch(seed))))
        getattr(session, step)(0.1)
        session.reset_tape()
        named, numbers = NAMED[step]
        getattr(trainer, named)(0.1, *numbers, batch(seed))
    np.testing.assert_allclose(w.value, trainer.get_params()["encoder"], rtol=1e-6, atol=1e-7)


def test_a_session_warns_of_two_parameters_of_one_array() -> None:
    session = Session()
    w, wide = np.ones((4, 4)), np.zeros((4, 8))
    session.param(w, name="first")
    for again in (w, w[:], w.T, w[1:3]):
        with pytest.warns(
            opstage.ProgramWarning,
            match="parameter second is created from the array, or a part of the array, of parameter first",
        ):
            session.param(again, name="second")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session.param(w.copy())
        for part in (wide[:2], wide[2:], wide[:, :4][:0], wide[:, :4][:0]):
            session.param(part)
        for _ in range(600):  # whose memory is that of the one before
            session.param(np.zeros(64))
        for value in (1.0, 1.0, np.float32(1), [1.0, 2.0]):
            session.param(value)
        Session().param(w)
    with pytest.raises(opstage.ProgramError, match=r"got parameter first; a Param is ready for use"):
        session.param(session.param(np.ones(3), name="first"))


# Trees at random -----------------------------------------------------------------------------------------------------


def random_tree(rng: np.random.Generator, params: list[Param], depth: int = 0) -> Any:
    """Nested dicts, lists and tuples with Params at the leaves, the same one often at several."""
    kind = rng.integers(0, 4 if depth else 3) if depth < 3 else 3
    if kind == 3:
        return params[rng.integers(len(params))]
    children = [random_tree(rng, params, depth + 1) for _ in range(rng.integers(1, 4))]
    if kind == 0:
        return {f"k{i}": child for i, child in enumerate(children)}
    return children if kind == 1 else tuple(children)


@pytest.mark.parametrize("seed", [*(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3)), *range(3, 24)])
def test_trees_at_random(seed: int) -> None:
    """Loss Σ aᵢ·sum(pᵢ) + bᵢ·sum(pᵢ²) over places i: the gradient of a parameter is Σ aᵢ + 2 bᵢ p over its own."""
    rng = np.random.default_rng(seed)
    params = [Param(rng.standard_normal(3), dtype="float64", requires_grad=bool(rng.random() < 0.8)) for _ in range(4)]
    tree = random_tree(rng, params)
    leaves, paths = flatten(tree)[0], trees.paths(tree)
    a, b = rng.standard_normal((2, len(leaves)))

    def weighted(ops: Any, held: Any, x: Any) -> Any:
        total = ops.sum(x)
        for leaf, linear, square in zip(flatten(held)[0], a, b):
            total = total + ops.sum(leaf) * float(linear) + ops.sum(leaf * leaf) * float(square)
        return total

    options = Options(dtype="float64", backend="compiled" if seed < 3 else "eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", opstage.ProgramWarning)  # where no parameter is trained
        if not any(leaf.requires_grad for leaf in leaves):
            leaves[0].requires_grad = True
        trainer = opstage.scalar_trainer(weighted, tree, options=options)
    unique = list(dict.fromkeys(leaves))
    names = {param: next(path for path, leaf in zip(paths, leaves) if leaf is param) for param in unique}
    before = {param: param.value.copy() for param in unique}
    expected = {
        param: sum(x + 2 * y * before[param] for leaf, x, y in zip(leaves, a, b) if leaf is param) for param in unique
    }
    assert trainer.parameter_count == 3 * len(unique)
    assert list(trainer.export().params) == list(names.values())
    for leaf, gradient in zip(leaves, flatten(tree)[1].flatten_up_to(trainer.backward(np.zeros(())))):
        if leaf.requires_grad:
            np.testing.assert_allclose(gradient, expected[leaf], rtol=1e-9, atol=1e-12)
        else:
            assert gradient is None
    state = trainer.init_optim(optim.momentum(0.1))
    assert len(state.slots) == sum(param.requires_grad for param in unique)
    trainer.advance(optim.momentum(0.1), state, np.zeros(()))
    for param in unique:
        moved = before[param] - 0.1 * expected[param] if param.requires_grad else before[param]
        np.testing.assert_allclose(param.value, moved, rtol=1e-9, atol=1e-12)
    for untouched in params:
        assert untouched in unique or untouched.version == 0
    values = flatten(trainer.get_params())[0]
    for i, leaf in enumerate(leaves):
        first = leaves.index(leaf)
        assert values[i] is values[first]
        if i != first:
            changed = [value + 1 if j == i else value for j, value in enumerate(values)]
            with pytest.raises(UsageError, match="are one parameter, but are given two values"):
                trainer.set_params(trees.unflatten(flatten(tree)[1], changed))
