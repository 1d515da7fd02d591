"""What tests of meshes share: training, a model's batch, digests, numbers within a tolerance, notes of calls."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Accumulate, Model, Options, init
from opstage.ops.trees import flatten
from opstage.training.trainer import ScalarTrainer


def rows_of(specs: Iterable[Any], rng: np.random.Generator, count: int) -> list[Any]:
    """Arrays of so many rows for the Specs of a batch."""
    shapes = [([int(e) if str(e).isdecimal() else count for e in spec.entries], spec.dtype) for spec in specs]
    return [rng.integers(0, 8, s) if dtype == "int64" else 0.3 * rng.standard_normal(s) for s, dtype in shapes]


def trained(
    loss: Callable[..., Any],
    params: Any,
    *batch: Any,
    rate: float = 0.1,
    steps: int = 2,
    parts: int | Accumulate | None = None,
    **options: Any,
) -> list[Any]:
    """The losses of SGD steps on one batch, and the parameters after them; in float64 unless the options differ."""
    how = Options(**{"dtype": "float64", **options})
    trainer = opstage.scalar_trainer(loss, params, options=how, accumulate=parts)
    return [*[trainer.step(rate, *batch) for _ in range(steps)], *flatten(trainer.get_params())[0]]


def trainer_of(made: Model, options: Options, **more: Any) -> ScalarTrainer:
    """A trainer of a shipped model, with its first parameters and state."""
    state = None if made.state is None else init.build(made.state, seed=0)
    params = init.build(made.init, seed=0, dtype=options.dtype)
    assert made.loss is not None
    return opstage.scalar_trainer(made.loss, params, *made.batch, options=options, state=state, **more)


def adamw_steps(trainer: ScalarTrainer, batches: Iterable[Any]) -> tuple[list[float], list[Any]]:
    """The losses of a step of AdamW on each batch; and the parameters and the state after them."""
    losses = [float(trainer.adamw_step(1e-3, 0.9, 0.999, 1e-8, 0.01, *batch)) for batch in batches]
    return losses, [np.array(leaf) for leaf in flatten((trainer.get_params(), trainer.state))[0] if leaf is not None]


def digest(leaves: Iterable[Any]) -> str:
    """Of the bits of arrays."""
    return hashlib.sha256(b"".join(np.ascontiguousarray(leaf).tobytes() for leaf in leaves)).hexdigest()


def assert_close(found: Iterable[Any], expected: Iterable[Any], rtol: float, atol: float = 0.0) -> None:
    """Each of as many arrays."""
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)


def noting(patch: pytest.MonkeyPatch, owner: Any, name: str, note: Callable[..., Any]) -> None:
    """Call `note(result, *arguments)` behind each call of a function."""
    within = getattr(owner, name)

    def call(*arguments: Any, **more: Any) -> Any:
        result = within(*arguments, **more)
        note(result, *arguments)
        return result

    patch.setattr(owner, name, call)
