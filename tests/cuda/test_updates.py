"""Updates of many parameters at once, with the bits of one update after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, optim
from opstage.ops.types import FLOAT32

CUDA = Options(device="cuda")
SHAPES = [(), (0,), (1,), (31,), (4, 8), (33,), (0, 3), (5, 13), (96,), (7,), (100,), (1, 1)]
"""Around a warp's elements and a part's, some without any."""

OPTIMIZERS = {
    "sgd": optim.sgd(lr=0.1, weight_decay=0.1),
    "momentum": optim.momentum(lr=0.1, weight_decay=0.1),
    "nesterov": optim.nesterov(lr=0.1),
    "adagrad": optim.adagrad(lr=0.1),
    "rmsprop": optim.rmsprop(lr=0.1, weight_decay=0.1),
    "adadelta": optim.adadelta(lr=0.5),
    "adam": optim.adam(lr=0.1, weight_decay=0.1),
    "adamw": optim.adamw(lr=0.1, weight_decay=0.1),
}


def operands(optimizer: optim.Optimizer, shapes: list[Any]) -> list[tuple[Any, ...]]:
    """p, g and state of each parameter; the state is not negative, as a sum of squares is not."""
    rng = np.random.default_rng(0)
    made = []
    for shape in shapes:
        states = optimizer.slots(shape, FLOAT32, "p")
        p, g, *state = [np.asarray(rng.standard_normal(shape), np.float32) for _ in range(2 + len(states))]
        made.append((p, g, *map(np.abs, state)))
    return made


def updates(optimizer: optim.Optimizer) -> Callable[..., Any]:
    def program(ops: Any, scalars: Any, each: Any) -> Any:
        return [optimizer.updater(ops, p, g, tuple(state), scalars) for p, g, *state in each]

    return program


def scalars(optimizer: optim.Optimizer) -> dict[str, Any]:
    return {name: np.float32(value) for name, value in optimizer.scalars(3).items()}


def same_bits(left: Any, right: Any) -> None:
    for a, b in zip(flat(left), flat(right), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert a.tobytes() == b.tobytes()


def flat(tree: Any) -> list[Any]:
    return [x for each in tree for x in flat(each)] if isinstance(tree, (tuple, list)) else [np.asarray(tree)]


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_all_at_once_have_the_bits_of_one_by_one(optimizer: optim.Optimizer) -> None:
    each, given = operands(optimizer, SHAPES), scalars(optimizer)
    alone = [opstage.run(updates(optimizer), given, [one], options=CUDA)[0] for one in each]
    same_bits(opstage.run(updates(optimizer), given, each, options=CUDA), alone)
