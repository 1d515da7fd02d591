"""Optimizers against their formulas, written out for NumPy in float64 and run for several steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import optim
from opstage.cli.check.sections import optimizer_called
from opstage.ops.errors import UsageError
from opstage.optim import schedule
from opstage.options import Options
from opstage.runs.settings import OptimizerSettings

SHAPES = [(3, 4), (5, 2), (2, 2)]
STEPS = 6

# The formulas: (parameter, gradient, what is kept from step to step, number of the step from 1) -> new parameter ------

Oracle = Callable[[Any, Any, dict[str, Any], int], Any]


def sgd(lr: float, weight_decay: float = 0.0) -> Oracle:
    return lambda p, g, kept, t: p - lr * (g + weight_decay * p)


def momentum(lr: float, mu: float, nesterov: bool, weight_decay: float = 0.0) -> Oracle:
    def step(p: Any, g: Any, kept: dict[str, Any], t: int) -> Any:
        g = g + weight_decay * p
        b = kept["b"] = g if t == 1 else mu * kept["b"] + g
        return p - lr * (g + mu * b if nesterov else b)

    return step


def adagrad(lr: float, lr_decay: float, weight_decay: float, start: float, eps: float) -> Oracle:
    def step(p: Any, g: Any, kept: dict[str, Any], t: int) -> Any:
        g = g + weight_decay * p
        total = kept["total"] = kept.get("total", start) + g * g
        return p - lr / (1 + (t - 1) * lr_decay) * g / (np.sqrt(total) + eps)

    return step


def rmsprop(lr: float, alpha: float, eps: float, weight_decay: float) -> Oracle:
    def step(p: Any, g: Any, kept: dict[str, Any], t: int) -> Any:
        g = g + weight_decay * p
        square = kept["square"] = alpha * kept.get("square", 0) + (1 - alpha) * g * g
        return p - lr * g / (np.sqrt(square) + eps)

    return step


def adam(lr: Any, betas: tuple[float, float], eps: float, weight_decay: float, decoupled: bool) -> Oracle:
    beta1, beta2 = betas

    def step(p: Any, g: Any, kept: dict[str, Any], t: int) -> Any:
        now = lr(t - 1) if callable(lr) else lr
        p, g = (p - now * weight_decay * p, g) if decoupled else (p, g + weight_decay * p)
        m = kept["m"] = beta1 * kept.get("m", 0) + (1 - beta1) * g
        v = kept["v"] = beta2 * kept.get("v", 0) + (1 - beta2) * g * g
        return p - now * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + eps)

    return step


def adadelta(lr: float, rho: float, eps: float, weight_decay: float) -> Oracle:
    def step(p: Any, g: Any, kept: dict[str, Any], t: int) -> Any:
        g = g + weight_decay * p
        square = kept["square"] = rho * kept.get("square", 0) + (1 - rho) * g * g
        move = np.sqrt(kept.get("delta", 0) + eps) / np.sqrt(square + eps) * g
        kept["delta"] = rho * kept.get("delta", 0) + (1 - rho) * move * move
        return p - lr * move

    return step


def muon(lr: float, weight_decay: float, mu: float, nesterov: bool, steps: int) -> Oracle:
    def orthogonal(x: Any) -> Any:
        u, s, vt = np.linalg.svd(x, full_matrices=False)
        s = s / max(math.sqrt(np.sum(s**2)), 1e-7)
        for _ in range(steps):
            s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
        return (u * s) @ vt

    def step(p: Any, g: Any, kept: dict[str, Any], t: int) -> Any:
        b = kept["b"] = mu * kept.get("b", 0) + (1 - mu) * g
        update = mu * b + (1 - mu) * g if nesterov else b
        return p - lr * weight_decay * p - lr * math.sqrt(max(1, p.shape[0] / p.shape[1])) * orthogonal(update)

    return step


def train(optimizer: optim.Optimizer, params: list[Any], gradients: list[list[Any]]) -> Iterator[list[Any]]:
    """Parameters after each step, the updates run as programs."""
    declared = optimizer.init([(p.shape, p.dtype) for p in params])
    slots: list[Any] = [tuple(np.full(s.shape, s.fill, s.dtype) for s in slot) for slot in declared]
    for t, step in enumerate(gradients, start=1):
        scalars = {name: np.asarray(value) for name, value in optimizer.scalars(t).items()}
        for i, g in enumerate(step):
            params[i], slots[i] = opstage.run(
                lambda ops, *refs: optimizer.update(ops, *refs), params[i], g, slots[i], scalars, options=FLOAT64
            )
        yield params


FLOAT64 = Options(dtype="float64")
CASES: dict[str, tuple[optim.Optimizer, Oracle]] = {
    "sgd": (optim.sgd(0.1), sgd(0.1)),
    "sgd, decay": (optim.sgd(0.1, weight_decay=0.2), sgd(0.1, 0.2)),
    "momentum": (optim.momentum(0.1), momentum(0.1, 0.9, False)),
    "momentum, decay": (optim.momentum(0.1, momentum=0.5, weight_decay=0.2), momentum(0.1, 0.5, False, 0.2)),
    "nesterov": (optim.nesterov(0.1, weight_decay=0.1), momentum(0.1, 0.9, True, 0.1)),
    "adagrad": (optim.adagrad(), adagrad(1e-2, 0.0, 0.0, 0.0, 1e-10)),
    "adagrad, all": (
        optim.adagrad(0.1, lr_decay=0.5, weight_decay=0.1, initial_accumulator_value=0.3, eps=1e-3),
        adagrad(0.1, 0.5, 0.1, 0.3, 1e-3),
    ),
    "rmsprop": (optim.rmsprop(), rmsprop(1e-2, 0.99, 1e-8, 0.0)),
    "rmsprop, all": (optim.rmsprop(0.1, alpha=0.5, eps=0.1, weight_decay=0.1), rmsprop(0.1, 0.5, 0.1, 0.1)),
    "adam": (optim.adam(), adam(1e-3, (0.9, 0.999), 1e-8, 0.0, False)),
    "adam, all": (optim.adam(0.1, betas=(0.5, 0.7), eps=0.1, weight_decay=0.1), adam(0.1, (0.5, 0.7), 0.1, 0.1, False)),
    "adamw": (optim.adamw(), adam(1e-3, (0.9, 0.999), 1e-8, 1e-2, True)),
    "adamw, scheduled": (
        optim.adamw(schedule.exponential(0.1, 0.5), weight_decay=0.3),
        adam(lambda step: 0.1 * 0.5**step, (0.9, 0.999), 1e-8, 0.3, True),
    ),
    "adadelta": (optim.adadelta(), adadelta(1.0, 0.9, 1e-6, 0.0)),
    "adadelta, all": (optim.adadelta(0.5, rho=0.5, eps=0.1, weight_decay=0.1), adadelta(0.5, 0.5, 0.1, 0.1)),
    "muon": (optim.muon(), muon(1e-3, 0.1, 0.95, True, 5)),
    "muon, all": (
        optim.muon(0.1, weight_decay=0.0, momentum=0.5, nesterov=False, ns_steps=3),
        muon(0.1, 0.0, 0.5, False, 3),
    ),
}


def require_followed(optimizer: optim.Optimizer, oracles: Sequence[Oracle], shapes: Sequence[Any]) -> None:
    rng = np.random.default_rng(7)
    params = [rng.standard_normal(shape) for shape in shapes]
    gradients = [[rng.standard_normal(shape) for shape in shapes] for _ in range(STEPS)]
    expected, kept = list(params), [dict[str, Any]() for _ in shapes]
    for t, (step, actual) in enumerate(zip(gradients, train(optimizer, params, gradients)), start=1):
        expected = [oracle(*each, t) for oracle, *each in zip(oracles, expected, step, kept)]
        for p, wanted in zip(actual, expected):
            np.testing.assert_allclose(p, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_an_optimizer_follows_its_formula(case: str) -> None:
    optimizer, oracle = CASES[case]
    require_followed(optimizer, [oracle] * len(SHAPES), SHAPES)


def test_muon_gives_the_parameters_that_are_not_matrices_to_another_optimizer() -> None:
    oracles = muon(0.1, 0.1, 0.95, True, 5), adam(0.2, (0.9, 0.999), 1e-8, 1e-2, True)
    require_followed(optim.muon(0.1, others=optim.adamw(0.2)), oracles, [(3, 2), (4,)])


def test_muon_alone_names_the_parameter_that_is_not_a_matrix() -> None:
    types: Any = [((3, 2), np.dtype("float32")), ((4,), np.dtype("float32"))]
    with pytest.raises(UsageError, match=r"muon updates matrices, but parameter blocks\.0\.bias is \(4,\)"):
        optim.muon().init(types, ["blocks.0.weight", "blocks.0.bias"])
    with pytest.raises(UsageError, match=r"parameter number 1 is \(4,\).*others=adamw"):
        optim.muon().init(types)


def test_newton_schulz_orthogonalises() -> None:
    rng = np.random.default_rng(7)
    p, g = np.zeros((4, 6)), rng.standard_normal((4, 6))
    optimizer = optim.muon(1.0, weight_decay=0.0, momentum=0.0, nesterov=False)
    (new,) = next(train(optimizer, [p], [[g]]))
    assert np.all(np.abs(np.linalg.svd(new)[1] - 1) < 0.35)


def test_slots_say_shape_dtype_and_first_value() -> None:
    types: Any = [((2, 3), np.dtype("float32")), ((), np.dtype("float64"))]
    assert optim.sgd().init(types) == [(), ()]
    assert optim.adam().init(types) == [((*t, 0.0),) * 2 for t in types]
    assert optim.adagrad(initial_accumulator_value=0.5).init(types) == [((*t, 0.5),) for t in types]


def test_scalars_are_of_step_t_counted_from_1() -> None:
    halving = schedule.exponential(0.8, 0.5)
    assert optim.sgd(halving).scalars(1) == {"lr": 0.8}
    assert optim.sgd(halving).scalars(4) == {"lr": 0.1}
    assert optim.adagrad(1.0, lr_decay=0.5).scalars(3) == {"lr": 0.5}
    corrections = optim.adam(0.1, betas=(0.5, 0.75)).scalars(2)
    assert corrections == {"lr": 0.1, "c1": 0.75, "c2": 0.4375}
    both = optim.muon(0.1, others=optim.adam(0.2, betas=(0.5, 0.75))).scalars(2)
    assert both == {"lr": 0.1, "others.lr": 0.2, "others.c1": 0.75, "others.c2": 0.4375}
    with pytest.raises(UsageError, match="t must be an int that is at least 1"):
        optim.sgd().scalars(0)


def test_optimizers_are_values() -> None:
    assert optim.adam(0.1) == optim.adam(0.1) != optim.adam(0.2)
    plain: optim.Optimizer = optim.adam(0.1)
    assert plain != optim.adamw(0.1, weight_decay=0.0)
    assert hash(optim.muon(others=optim.sgd())) == hash(optim.muon(others=optim.sgd()))
    assert repr(optim.sgd(0.5)) == "Sgd(lr=0.5, weight_decay=0.0)"
    with pytest.raises(AttributeError):
        optim.adam().lr = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: optim.sgd(-0.1), "sgd: lr must be a finite number that is at least 0 but is -0.1"),
        (lambda: optim.sgd(math.nan), "sgd: lr .* nan"),
        (lambda: optim.sgd("fast"), "sgd: lr .* 'fast'"),  # type: ignore[arg-type]
        (lambda: optim.sgd(True), "sgd: lr .* True"),
        (lambda: optim.sgd(0.1, weight_decay=math.inf), "sgd: weight_decay .* inf"),
        (lambda: optim.momentum(momentum=-1.0), "momentum: momentum .* -1.0"),
        (lambda: optim.nesterov(weight_decay=-1.0), "nesterov: weight_decay .* -1.0"),
        (lambda: optim.adagrad(lr_decay=-1.0), "adagrad: lr_decay .* -1.0"),
        (lambda: optim.adagrad(initial_accumulator_value=-1.0), "adagrad: initial_accumulator_value"),
        (lambda: optim.rmsprop(alpha=1.5), r"rmsprop: alpha must be a number in \[0, 1\] but is 1.5"),
        (lambda: optim.adam(betas=(0.9, 1.0)), r"adam: betas\[1\] must be a number in \[0, 1\) but is 1.0"),
        (lambda: optim.adam(betas=0.9), r"adam: betas must be a pair"),  # type: ignore[arg-type]
        (lambda: optim.adamw(eps=-1e-8), "adamw: eps .* -1e-08"),
        (lambda: optim.adadelta(rho=-0.1), "adadelta: rho"),
        (lambda: optim.muon(momentum=1.0), "muon: momentum"),
        (lambda: optim.muon(ns_steps=0), "muon: ns_steps must be an int that is at least 1 but is 0"),
        (lambda: optim.muon(others=optim.muon()), "muon: others must be another optimizer"),
    ],
)
def test_bad_hyperparameters(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


def test_decay_is_not_taken_for_momentum() -> None:
    with pytest.raises(TypeError):
        optim.sgd(0.1, 0.9)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", optim.SHIPPED)
def test_shipped_optimizers_go_by_their_names_everywhere(name: str) -> None:
    """In Python, in configurations and on the command line; each for parameters of every shape."""
    configured = OptimizerSettings(name=name, lr=0.25, schedule="constant", weight_decay=0.5).make(10)
    for made in (configured, optimizer_called(name)):
        assert isinstance(made, getattr(optim, name)) and made.name == name
        vector, matrix = made.init([((3,), np.dtype("float32")), ((2, 3), np.dtype("float32"))])
        assert {slot.shape for slot in vector} <= {(3,)} and {slot.shape for slot in matrix} <= {(2, 3)}
    each: Any = configured
    others = [each.others] if name == "muon" else []
    assert all((one.lr, one.weight_decay) == (0.25, 0.5) for one in [each, *others])
