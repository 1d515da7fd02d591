"""Ranges of whole training steps: gradients of attention and of loops, proved finite where they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Spec
from opstage.facts import RangeReport, ranges_of
from opstage.facts.ranges.rules import mixing
from opstage.models import MODELS
from opstage.ops.catalogue.attention import SCALED_DOT_PRODUCT_ATTENTION_GRAD
from opstage.training.validate import check_step
from tests.facts.test_ranges_of_ops import outside, wrong

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


def test_a_rule_that_takes_whatever_was_kept_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from opstage.facts.ranges.rules import table

    rule = lambda domain, call, facts: mixing.linear_finite(domain, call, (*facts[:3], facts[-1]))  # noqa: E731
    monkeypatch.setitem(table.RULES, SCALED_DOT_PRODUCT_ATTENTION_GRAD, rule)
    assert stranger()


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


def test_a_loop_that_ends_too_soon_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from opstage.facts import loops

    right = loops._fixpoint
    monkeypatch.setattr(loops, "_fixpoint", lambda *args: right(*args[:5], args[5] and args[5] - 1))
    assert wrong(adding, [np.full(5, 2.0)], "float64", [Spec((5,), range=(-1, 2))])
