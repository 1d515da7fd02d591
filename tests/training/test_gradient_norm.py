"""The norm of all gradients beside a step: what it is, and that no bit of the run depends on it."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from opstage import Options, optim, scalar_trainer

rng = np.random.default_rng(5)
START = {
    "w": rng.standard_normal((16, 8)).astype("float32"),
    "b": rng.standard_normal(16).astype("float32"),
    "v": rng.standard_normal((4, 16)).astype("float32"),
}
X, Y = rng.standard_normal((12, 8)).astype("float32"), rng.integers(0, 4, 12)


def loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
    h = ops.layer_norm(ops.gelu(ops.linear(params["w"], params["b"], x)), None, None)
    return ops.cross_entropy(ops.linear(params["v"], None, h), y)


def trained(backend: Any, optimizer: Any, *, norm: bool, **how: Any) -> tuple[str, list[Any]]:
    """A digest of the bits of parameters, moments and losses after five steps, and the norms."""
    options = Options(backend=backend)
    trainer = scalar_trainer(loss, START, options=options, gradient_norm=norm, **how)
    state, digest, norms = trainer.init_optim(optimizer), hashlib.sha256(), []
    for _ in range(5):
        result = trainer.advance(optimizer, state, X, Y)
        digest.update(result.loss.tobytes())
        norms.append(result.gradient_norm)
    for array in trainer.get_params().values():
        digest.update(np.ascontiguousarray(array).tobytes())
    for slot in trainer.export_optim(optimizer, state).slots.values():
        digest.update(repr([np.asarray(each).tobytes() for each in slot]).encode())
    return digest.hexdigest(), norms


@pytest.mark.parametrize("how", [{}, {"clip": optim.clip.by_global_norm(0.1)}, {"accumulate": 3}], ids=str)
@pytest.mark.parametrize("optimizer", [optim.adamw(0.05), optim.momentum(0.1)], ids=lambda each: each.name)
@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_no_bit_depends_on_it(backend: str, optimizer: Any, how: dict[str, Any]) -> None:
    without, none = trained(backend, optimizer, norm=False, **how)
    beside, norms = trained(backend, optimizer, norm=True, **how)
    assert beside == without
    assert none == [None] * 5 and all(np.isfinite(norm) and norm > 0 for norm in norms)


@pytest.mark.parametrize("how", [{}, {"clip": optim.clip.by_global_norm(0.1)}, {"accumulate": 3}], ids=str)
@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_it_is_the_norm_before_clipping(backend: str, how: dict[str, Any]) -> None:
    gradients = scalar_trainer(loss, START).backward(X, Y)
    expected = np.sqrt(sum(np.sum(g.astype("float64") ** 2) for g in gradients.values()))
    np.testing.assert_allclose(trained(backend, optim.sgd(0.1), norm=True, **how)[1][0], expected, rtol=1e-5)


def test_without_trained_parameters_it_is_nothing() -> None:
    trainer = scalar_trainer(loss, START, requires_grad=False, gradient_norm=True)
    assert trainer.train_step(optim.sgd(0.1), trainer.init_optim(optim.sgd(0.1)), X, Y).gradient_norm == 0
