"""Ranges of whole training steps: gradients of attention and of loops, proved finite where they are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Spec, optim
from opstage.facts import RangeReport, ValueRange, ranges_of
from opstage.models import MODELS
from opstage.optim.clip import ByGlobalNorm, ByNorm, ByValue
from opstage.optim.groups import grouped
from opstage.optim.schedule import WarmupCosine
from opstage.training.validate import check_step
from tests.analysis.ranges.test_ranges_of_ops import outside, wrong

SAFE = ("mlp", "cnn", "resnet", "vit", "gpt", "lstm", "unet", "pinn")
"""The ones whose steps are finite for any data; vae takes exponentials of what layers give."""


def step_of(name: str) -> RangeReport:
    model = opstage.models.model(name)
    report = check_step(model.require_loss(), model.init, *model.batch, state=model.state)
    assert report.ok, report
    return ranges_of(report, dtype="bfloat16")


@pytest.mark.parametrize("name", SAFE)
def test_the_step_of_a_shipped_model_is_proved_finite(name: str) -> None:
    found = step_of(name)
    assert found.safe, found


def test_the_others_are_warned_about() -> None:
    assert {name for name in MODELS if name not in SAFE} == {"vae"}
    assert {finding.rule for finding in step_of("vae").findings} == {"overflow"}


# Attention ------------------------------------------------------------------------------------------------------------

SHAPE = Spec("2 3 4", range=(-4, 4))


def attending(ops: Any, params: Any, mask: Any) -> Any:
    return ops.sum(ops.scaled_dot_product_attention(params["q"], params["k"], params["v"], mask) ** 2)


def biased(ops: Any, params: Any, mask: Any) -> Any:
    out = ops.scaled_dot_product_attention(params["q"], params["k"], params["v"], mask, params["bias"])
    return ops.sum(out * out)


@pytest.mark.parametrize("program", [attending, biased])
@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_gradients_of_attention_are_finite_as_is_proved(program: Any, backend: Any) -> None:
    specs = dict.fromkeys("qkv", SHAPE) | ({"bias": Spec("2 3 3", range=(-4, 4))} if program is biased else {})
    found = ranges_of(check_step(program, specs, Spec("2 3 3", "bool")))
    assert found.safe and any("attention" in text for text in found.assumptions), found
    rng = np.random.default_rng(2)
    params = {name: rng.uniform(-4, 4, [int(size) for size in spec.entries]) for name, spec in specs.items()}
    mask = np.array([[[1, 0, 1], [0, 0, 0], [1, 1, 1]], [[0, 0, 0]] * 3], bool)  # rows with nothing to attend to
    trainer = opstage.scalar_trainer(program, params, options=Options(backend=backend))
    trainer.step(1.0, mask)
    moved = trainer.get_params()
    assert all(outside(dict(found.outputs)[f"params.{name}"], moved[name]) == "" for name in params)


def _gradient(ops: Any, q: Any, k: Any, v: Any, peak: Any, total: Any, g: Any) -> Any:
    return ops.scaled_dot_product_attention_grad(q, k, v, None, peak, total, g)


def stranger() -> list[str]:
    """The gradient with numbers that no attention kept of these scores."""
    x, kept = np.full((1, 2, 2), 30.0), np.zeros((1, 2, 1))
    return wrong(_gradient, [x, x, x, kept - 50, kept, x], "float64")


def test_what_another_attention_kept_proves_nothing() -> None:
    assert stranger() == []


# What steps keep ------------------------------------------------------------------------------------------------------


def squares(ops: Any, params: Any, x: Any) -> Any:
    return ops.reduce_mean(ops.matmul(x, params["w"]) ** 2)


def kept_by(optimizer: Any, **more: Any) -> RangeReport:
    report = check_step(squares, {"w": Spec("4 3")}, Spec("B 4", range=(-1, 1)), optimizer=optimizer)
    assert report.ok, report
    return ranges_of(report, **more)


@pytest.mark.parametrize(
    ("optimizer", "squared"),
    [
        (optim.adam(), "slots.w.1"),
        (optim.adamw(), "slots.w.1"),
        (optim.adagrad(), "slots.w.0"),
        (optim.rmsprop(), "slots.w.0"),
        (optim.adadelta(), "slots.w.1"),
    ],
    ids=lambda o: getattr(o, "name", ""),
)
def test_means_of_squares_stay_at_least_0_in_every_step(optimizer: Any, squared: str) -> None:
    """Without a word on how far training has come: by induction, from what the optimizer begins with."""
    found = kept_by(optimizer)
    assert found.safe and dict(found.outputs)[squared].low == 0, found
    assert any("which is proved for every step" in each for each in found.given)


def test_a_mean_that_a_step_may_make_negative_is_not_taken_to_stay() -> None:
    """The first moment begins at 0 as the second does, and has a sign of its own in the next step."""
    assert dict(kept_by(optim.adam()).outputs)["slots.w.0"].low == -math.inf


def test_a_stated_bound_and_the_first_step_come_before_it() -> None:
    stated = kept_by(optim.adam(), bounds={"slots.*.1": (-1, 1)})
    assert "sqrt-of-negative" in [finding.rule for finding in stated.findings]
    assert not any("is proved to leave it" in each for each in kept_by(optim.adam(), initial=True).given)


def test_an_update_that_subtracts_squares_keeps_no_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong rule, by which squares may be negative, is not confirmed by the step."""
    from opstage.analysis.ranges import rules
    from opstage.ops import elementwise

    wrong_square = lambda domain, call, facts: [ValueRange()]  # noqa: E731
    monkeypatch.setitem(rules.RULES, elementwise.MUL, wrong_square)
    monkeypatch.setitem(rules.RULES, elementwise.POW, wrong_square)
    assert dict(kept_by(optim.adam()).outputs)["slots.w.1"].low == -math.inf


def test_what_an_optimizer_keeps_is_in_its_range_after_many_steps() -> None:
    found = dict(kept_by(optim.adam()).outputs)
    trainer = opstage.scalar_trainer(squares, {"w": np.ones((4, 3))})
    optimizer, rng = optim.adam(), np.random.default_rng(0)
    state = trainer.init_optim(optimizer)
    for _ in range(50):
        state = trainer.step_with(optimizer, state, rng.uniform(-1, 1, (5, 4)).astype(np.float32))
    for i, slot in enumerate(trainer.export_optim(optimizer, state).slots["w"]):
        assert outside(found[f"slots.w.{i}"], slot) == ""
    assert outside(found["params.w"], trainer.get_params()["w"]) == ""


# Loops ----------------------------------------------------------------------------------------------------------------


def adding(ops: Any, x: Any) -> Any:
    return ops.scan(lambda ops, c, e: (c + e, c), ops.full(shape=(), value=0.0), x)


def doubling(ops: Any, x: Any) -> Any:
    return ops.scan(lambda ops, c, e: (c + c + e, c * c), ops.full(shape=(), value=1.0), x)


@pytest.mark.parametrize("program", [adding, doubling])
@pytest.mark.parametrize("length", [0, 1, 2, 3, 5, 24, 25])
def test_a_loop_of_few_iterations_is_followed_through_all_of_them(program: Any, length: int) -> None:
    spec = Spec((length,), range=(-1, 2))
    report = opstage.check(program, spec)
    found = ranges_of(report)
    assert all(range_.bounded for _, range_ in found.outputs), found
    for x in (np.full(length, 2.0), np.full(length, -1.0)):
        options = Options(dtype="float64")
        assert wrong(program, [x], "float64", [spec]) == []
        assert outside(found.outputs[0][1], opstage.run(program, x, options=options)[0]) == ""


# Groups, schedules, clips ---------------------------------------------------------------------------------------------

BASES = {
    each.name: each
    for each in (
        optim.sgd(),
        optim.momentum(),
        optim.nesterov(),
        optim.adam(),
        optim.adamw(),
        optim.adagrad(),
        optim.rmsprop(),
        optim.adadelta(),
        optim.muon(others=optim.adamw()),
    )
}
STEPS: dict[str, tuple[Any, Any]] = {
    **{f"{name} of {group}": (grouped(base, {"b": group}), None) for name, base in BASES.items()
       for group in ({"lr_scale": 0.1}, {"weight_decay": 0.0})},
    "muon and adamw": (grouped(optim.muon(), {"b": optim.adamw()}), None),
    "sgd and adam": (grouped(optim.sgd(), {"b": optim.adam(betas=(0.5, 0.9))}), None),
    "a schedule": (optim.adam(lr=WarmupCosine(1e-3, 10, 100)), None),
    **{f"clipped {clip}": (optim.adamw(), clip) for clip in (ByValue(1.0), ByNorm(1.0), ByGlobalNorm(1.0))},
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_steps_of_groups_schedules_and_clips_are_proved_finite(name: str) -> None:
    """In any step: the corrections of moments are those of each group, and above 0."""
    optimizer, clip = STEPS[name]

    def loss(ops: Any, params: Any, x: Any) -> Any:
        return squares(ops, params, x) + ops.reduce_mean(params["b"] ** 2)

    specs = {"w": Spec("4 3"), "b": Spec("3")}
    report = check_step(loss, specs, Spec("B 4", range=(-1, 1)), optimizer=optimizer, clip=clip)
    assert report.ok, report
    for dtype in ("float32", "bfloat16"):
        assert ranges_of(report, dtype=dtype).findings == ()


def test_scalars_of_groups_are_where_their_ranges_say() -> None:
    bound = grouped(optim.muon(), {"b": optim.adam(betas=(0.5, 0.9))}).bound((("w",), ("b",)))
    ends = bound.scalar_ranges()
    assert set(ends) <= set(bound.scalars(1)) and len(ends) == 2
    for t in (1, 2, 10, 10_000):
        scalars = bound.scalars(t)
        assert all(low <= scalars[name] <= high for name, (low, high) in ends.items())
