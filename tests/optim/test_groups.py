"""Parameter groups: equal to an optimizer for each group by hand, wherever an optimizer goes; rules that do not fit."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Param, Session, Spec, UsageError, check_step, optim, scalar_trainer
from opstage.optim import Optimizer, schedule
from opstage.optim.groups import apply_rules
from opstage.training import checkpoint
from opstage.training.memory import step_memory
from tests.optim.test_own_optimizers import Lion

SHAPES = {"emb": (4, 6), "norm": (6,)}
OUT = {"weight": (3, 6), "bias": (3,)}
BACKENDS = {"eager": Options(), "plain": Options(fast_kernels=False), "compiled": Options(backend="compiled")}


def start() -> dict[str, Any]:
    rng = np.random.default_rng(5)
    made = {name: rng.standard_normal(SHAPES[name]).astype(np.float32) for name in ("emb", "norm")}
    out = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in OUT.items()}
    return {**made, "out": out}


X = np.array([0, 3, 1, 1, 2])
Y = np.random.default_rng(6).standard_normal((5, 3)).astype(np.float32)


def loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
    h = opstage.derived.embedding(ops, params["emb"], x)
    h = ops.tanh(ops.mul(h, ops.broadcast_to(params["norm"], shape=h.shape)))
    return ops.mse_loss(ops.linear(params["out"]["weight"], params["out"]["bias"], h), y)


def leaves(params: Any) -> dict[str, Any]:
    return {
        "emb": params["emb"],
        "norm": params["norm"],
        "out.weight": params["out"]["weight"],
        "out.bias": params["out"]["bias"],
    }


def by_hand(optimizers: dict[str, Optimizer], options: Options, steps: int = 4) -> dict[str, Any]:
    """Each parameter moved by its own optimizer: the gradients of all, then a step of each with the others frozen."""
    values = start()
    states: dict[str, Any] = {}
    for _ in range(steps):
        new = {}
        for path, optimizer in optimizers.items():
            flags = {"emb": path == "emb", "norm": path == "norm"}
            flags |= {"out": {"weight": path == "out.weight", "bias": path == "out.bias"}}  # type: ignore[dict-item]
            trainer = scalar_trainer(loss, values, options=options, requires_grad=flags)
            state = states.get(path, trainer.init_optim(optimizer))
            states[path] = trainer.step_with(optimizer, state, X, Y)
            new[path] = leaves(trainer.get_params())[path]
        values = {"emb": new["emb"], "norm": new["norm"], "out": {"weight": new["out.weight"], "bias": new["out.bias"]}}
    return leaves(values)


def trained(optimizer: Optimizer, options: Options = BACKENDS["eager"], steps: int = 4) -> dict[str, Any]:
    trainer = scalar_trainer(loss, start(), options=options)
    state = trainer.init_optim(optimizer)
    for _ in range(steps):
        trainer.advance(optimizer, state, X, Y)
    return leaves(trainer.get_params())


def same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for path in expected:
        np.testing.assert_array_equal(found[path], expected[path], err_msg=path)


RATE = schedule.warmup_cosine(0.5, warmup_steps=2, total_steps=6)
CASES: dict[str, tuple[Optimizer, dict[str, Optimizer]]] = {
    "decay": (
        optim.grouped(optim.adamw(0.1, weight_decay=0.5), {"*.bias|*norm*": {"weight_decay": 0}}),
        {
            "emb": optim.adamw(0.1, weight_decay=0.5),
            "norm": optim.adamw(0.1, weight_decay=0),
            "out.weight": optim.adamw(0.1, weight_decay=0.5),
            "out.bias": optim.adamw(0.1, weight_decay=0),
        },
    ),
    "overlapping": (
        optim.grouped(optim.momentum(0.1), {"out.*": {"lr": 0.01}, "*bias": {"momentum": 0.5}, "emb": {"lr_scale": 3}}),
        {
            "emb": optim.momentum(0.1 * 3),
            "norm": optim.momentum(0.1),
            "out.weight": optim.momentum(0.01),
            "out.bias": optim.momentum(0.01, momentum=0.5),
        },
    ),
    "schedules": (
        optim.grouped(
            optim.adam(RATE),
            {"emb": {"lr": 0.25}, "norm": {"lr": schedule.constant(0.125)}, "out.bias": {"lr_scale": 0.5}},
        ),
        {
            "emb": optim.adam(schedule.warmup_cosine(0.25, warmup_steps=2, total_steps=6)),
            "norm": optim.adam(0.125),
            "out.weight": optim.adam(RATE),
            "out.bias": optim.adam(schedule.scaled(RATE, 0.5)),
        },
    ),
    "optimizers": (
        optim.grouped(optim.adamw(0.1), {"emb": optim.sgd(0.5), "norm": Lion(lr=0.02)}),
        {"emb": optim.sgd(0.5), "norm": Lion(lr=0.02), "out.weight": optim.adamw(0.1), "out.bias": optim.adamw(0.1)},
    ),
    "muon": (
        optim.grouped(optim.muon(0.1, others=optim.adamw(0.2)), {"out.*": {"weight_decay": 0.25}}),
        {
            "emb": optim.muon(0.1),
            "norm": optim.adamw(0.2),
            "out.weight": optim.muon(0.1, weight_decay=0.25),
            "out.bias": optim.adamw(0.2, weight_decay=0.25),
        },
    ),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES)
def test_equal_to_an_optimizer_for_each_parameter(case: str, backend: str) -> None:
    optimizer, each = CASES[case]
    same(trained(optimizer, BACKENDS[backend]), by_hand(each, BACKENDS[backend]))


@pytest.mark.parametrize("case", CASES)
def test_a_scaled_one_scales_every_group(case: str) -> None:
    optimizer, each = CASES[case]
    same(trained(optimizer.scaled(0.5)), by_hand({path: mine.scaled(0.5) for path, mine in each.items()}, Options()))


@pytest.mark.parametrize("case", CASES)
def test_a_run_goes_on_from_a_checkpoint(case: str, tmp_path: Path) -> None:
    optimizer = CASES[case][0]
    trainer = scalar_trainer(loss, start())
    state = trainer.init_optim(optimizer)
    for _ in range(2):
        state = trainer.step_with(optimizer, state, X, Y)
    checkpoint.save(tmp_path, checkpoint.take_snapshot(trainer, optimizer, state))
    again = scalar_trainer(loss, start())
    back = checkpoint.restore(again, checkpoint.load(tmp_path), optimizer)
    assert back is not None
    for _ in range(2):
        back = again.step_with(optimizer, pickle.loads(pickle.dumps(back)), X, Y)
    same(leaves(again.get_params()), trained(optimizer))


def test_numbers_may_change_with_a_state_but_not_whose_it_is() -> None:
    """As without groups: moments of adamw are those of adamw, whatever its decay; those of sgd are not."""
    trainer = scalar_trainer(loss, start())
    state = trainer.step_with(optim.adamw(0.1), trainer.init_optim(optim.adamw(0.1)), X, Y)
    state = trainer.step_with(CASES["decay"][0], state, X, Y)
    trainer.step_with(optim.adamw(0.1), state, X, Y)
    with pytest.raises(
        UsageError, match="state is that of adamw, but the optimizer is adamw with lion for norm; sgd for"
    ):
        trainer.step_with(CASES["optimizers"][0], state, X, Y)


def test_a_parameter_at_several_places_is_matched_at_any() -> None:
    def tied(ops: Any, params: Any) -> Any:
        return ops.sum(ops.add(params["first"], params["second"]))

    one = Param(np.ones(2, "float32"))
    optimizer = optim.grouped(optim.sgd(1.0), {"second": {"lr": 0.25}})
    trainer = scalar_trainer(tied, {"first": one, "second": one})
    trainer.step_with(optimizer, trainer.init_optim(optimizer))
    np.testing.assert_array_equal(trainer.get_params()["first"], [0.5, 0.5])
    both = optim.grouped(optim.sgd(1.0), {"first": {"lr": 0.5}, "second": {"lr": 0.25}})
    with pytest.raises(UsageError, match=r"'first' and 'second' both match first and disagree on lr: 0\.5 and 0\.25"):
        trainer.init_optim(both)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"*.bais": {"lr": 0.1}}, r"group '\*.bais' matches no parameter .did you mean 'out.bias'"),
        ({"out.wieght": {"lr": 0.1}}, "'out.wieght' matches no parameter .did you mean 'out.weight'"),
        ({"zzz": {"lr": 0.1}}, "matches no parameter; there are emb, norm, out.bias, out.weight$"),
        (
            {"*.bias": {"lr": 0.1}, "out.*": {"lr": 0.2}},
            r"'\*.bias' and 'out.\*' both match out.bias and disagree on lr",
        ),
        ({"*.bias": {"lr": 0.1}, "out.*": optim.sgd(0.2)}, r"both match out.bias, and one has its own optimizer"),
    ],
)
def test_rules_that_do_not_fit_the_parameters(groups: Any, message: str) -> None:
    optimizer = optim.grouped(optim.adamw(0.1), groups)
    trainer = scalar_trainer(loss, start())
    with pytest.raises(UsageError, match=message):
        trainer.init_optim(optimizer)
    report = check_step(loss, start(), Spec("B", dtype="int64"), Spec("B 3"), optimizer=optimizer)
    assert not report.ok and str(report.errors[0]).find("match") >= 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: optim.grouped(optim.sgd(0.1), {"a": {"momentun": 1}}), "group 'a': sgd has no momentun; it has lr"),
        (lambda: optim.grouped(optim.momentum(0.1), {"a": {"momentun": 1}}), "did you mean 'momentum'"),
        (lambda: optim.grouped(optim.sgd(0.1), {"a": {"lr": -1}}), "group 'a': sgd: lr must be a finite number"),
        (lambda: optim.grouped(optim.sgd(0.1), {"a": {"lr_scale": -1}}), "group 'a': sgd: lr_scale must be"),
        (lambda: optim.grouped(optim.sgd(0.1), {"a": {}}), "group 'a' must have numbers"),
        (lambda: optim.grouped(optim.sgd(0.1), ["a"]), "takes a dict of patterns"),  # type: ignore[arg-type]
        (lambda: optim.grouped(0.1, {}), "grouped takes an optimizer"),  # type: ignore[arg-type]
        (lambda: optim.grouped(CASES["decay"][0], {"a": {"lr": 1}}), "an optimizer without groups"),
        (lambda: optim.grouped(optim.sgd(schedule.cyclic(0.1, 0.2)), {"a": {"lr": 1}}), "give a schedule, or lr_scale"),
        (lambda: apply_rules("rule", [("a||b", {})], [("a",)]), "must be a pattern such as"),
    ],
)
def test_groups_that_nothing_could_fit(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


def test_what_is_frozen_by_a_pattern() -> None:
    trainer = scalar_trainer(loss, start(), requires_grad={"out.*|norm": False, "*bias": False})
    before, optimizer = leaves(trainer.get_params()), CASES["decay"][0]
    trainer.step_with(optimizer, trainer.init_optim(optimizer), X, Y)
    after = leaves(trainer.get_params())
    assert [path for path in after if not np.array_equal(before[path], after[path])] == ["emb"]


def test_a_prefix_is_of_all_that_is_below_it() -> None:
    frozen = {
        name: [
            row.path
            for row in scalar_trainer(loss, start(), requires_grad=rules).moved_by(optim.sgd(0.1))
            if row.frozen
        ]
        for name, rules in {
            "prefix": {"out": False},
            "pattern": {"out.*": False},
            "both": {"out": False, "*orm": True},
        }.items()
    }
    assert frozen["prefix"] == frozen["pattern"] == frozen["both"] == ["out.bias", "out.weight"]


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"outt": False}, r"requires_grad 'outt' matches no parameter .did you mean"),
        ({"*.bais": False}, r"requires_grad '\*.bais' matches no parameter .did you mean 'out.bias'"),
        (
            {"*.bias": False, "out.*": True},
            r"'\*.bias' and 'out.\*' both match out.bias and disagree on flag: False and",
        ),
        ({"*.bias": 0}, r"requires_grad of '\*.bias' must be a bool but is 0"),
    ],
)
def test_patterns_of_flags_that_do_not_fit(rules: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        scalar_trainer(loss, start(), requires_grad=rules)


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_a_session_takes_groups_by_the_names_of_its_parameters(backend: Any) -> None:
    optimizer = CASES["optimizers"][0]
    session = Session(Options(backend=backend))
    params = {path: session.param(value, name=path) for path, value in leaves(start()).items()}
    for _ in range(4):
        used = {path: session.use(param) for path, param in params.items()}
        x, y = session.input(X), session.input(Y)
        tree = {"emb": used["emb"], "norm": used["norm"]}
        tree["out"] = {"weight": used["out.weight"], "bias": used["out.bias"]}  # type: ignore[assignment]
        session.backward(loss(session, tree, x, y))
        session.step_all(optimizer)
        session.reset_tape()
    expected = trained(optimizer, Options(backend=backend))
    for path, param in params.items():
        np.testing.assert_allclose(param.value, expected[path], rtol=2e-6, atol=1e-7, err_msg=path)


def test_groups_of_one_optimizer_change_neither_ops_nor_memory_of_a_step() -> None:
    batch = Spec("5", dtype="int64"), Spec("5 3")
    plain, groups = optim.adamw(0.1), CASES["decay"][0]
    reports = [check_step(loss, start(), *batch, optimizer=each) for each in (plain, groups)]
    assert all(report.ok for report in reports)
    assert len({len(report.graph.body.equations) for report in reports}) == 1
    numbers = 3 * 4  # lr, c1 and c2 of one group more
    peaks = [step_memory(loss, start(), *batch, optimizer=each).at().peak for each in (plain, groups)]
    assert peaks[1] - peaks[0] in (0, numbers)


def test_it_is_a_value() -> None:
    optimizer, again = CASES["decay"][0], copy.deepcopy(CASES["decay"][0])
    assert optimizer == again and repr(optimizer) == repr(again)
    same(trained(pickle.loads(pickle.dumps(optimizer))), trained(optimizer))


@pytest.mark.parametrize(
    ("pattern", "suggested"),
    [
        ("*.bais", " (did you mean '*.bias'?)"),
        ("*.bais|*.wieght", " (did you mean '*.bias'?)"),
        ("enc.*", "; there are layers.0.bias, layers.0.weight"),
    ],
)
def test_what_is_suggested_is_a_pattern_that_matches(pattern: str, suggested: str) -> None:
    """Where no path is near as it is: `bias` alone would match nothing."""
    layers = {"layers": [{"weight": np.ones(2), "bias": np.ones(2)}]}
    trainer = opstage.scalar_trainer(lambda ops, p: ops.sum(p["layers"][0]["weight"]), layers)
    with pytest.raises(UsageError) as caught:
        trainer.init_optim(optim.grouped(optim.sgd(0.1), {pattern: {"lr": 0}}))
    assert str(caught.value) == f"optimizer group {pattern!r} matches no parameter{suggested}"
