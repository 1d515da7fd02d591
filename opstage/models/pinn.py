"""A physics-informed network (Raissi et al. 2019): a field whose own derivatives are its loss.

It solves Burgers' equation u_t + u·u_x = ν·u_xx on [-1, 1] × [0, 1] with u(x, 0) = -sin(πx) and u(±1, t) = 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

from ..data import builtin_datasets as burgers
from ..init import xavier_uniform
from ..ops import transform
from ..ops.protocol import Ops, R
from ..ops.spec import Spec
from .layers import Tree, linear, linear_init
from .model import Model, Recipe, Split

VISCOSITY = 0.01 / math.pi


@dataclass(frozen=True)
class Config:
    """A network of tanh layers of `hidden` units.

    A point's residual counts in the loss divided by 1 + `damping`·|u_x|: without it the front, where u_x is a hundred
    times what it is elsewhere, would drown the rest.
    """

    hidden: tuple[int, ...] = (32, 32, 32, 32)
    damping: float = 0.1


def init(config: Config) -> Tree:
    """Return declarations of the parameters: `layers.0.weight`, … ."""
    sizes = (2, *config.hidden, 1)
    return {"layers": [linear_init(a, b, xavier_uniform()) for a, b in pairwise(sizes)]}


def field(ops: Ops[R], params: Tree, x: R, t: R) -> R:
    """u at points (x, t), all of shape (B,): -sin(πx) + t·(1 - x²)·network(x, t).

    The form holds the initial and the boundary values exactly, so only the equation is left to be learnt.
    """
    one = ops.full(shape=x.shape, value=1.0, dtype=x.dtype)
    start = ops.neg(ops.sin(ops.scale(x, c=math.pi)))
    inside = ops.mul(t, ops.sub(one, ops.mul(x, x)))
    return ops.add(start, ops.mul(inside, _network(ops, params, x, t)))


def _network(ops: Ops[R], params: Tree, x: R, t: R) -> R:
    h = ops.stack([x, t], axis=1)
    *hidden, last = params["layers"]
    for layer in hidden:
        h = ops.tanh(linear(ops, layer, h))
    return ops.squeeze(linear(ops, last, h), axis=1)


def derivatives(ops: Ops[R], params: Tree, x: R, t: R) -> tuple[R, R, R, R]:
    """u, u_x, u_xx, u_t at points (x, t), by forward mode along x, nested in itself, and along t.

    Each point's u depends on that point alone, so one tangent of ones gives the derivative of every point.
    """
    one = ops.full(shape=x.shape, value=1.0, dtype=x.dtype)

    def along_x(ops: Any, x: Any) -> Any:
        return transform.jvp(ops, lambda ops, x: field(ops, params, x, t), (x,), (one,))

    (u, u_x), (_, u_xx) = transform.jvp(ops, along_x, (x,), (one,))
    _, u_t = transform.jvp(ops, lambda ops, t: field(ops, params, x, t), (t,), (one,))
    return u, u_x, u_xx, u_t


def residual(ops: Ops[R], params: Tree, x: R, t: R) -> tuple[R, R]:
    """u_t + u·u_x - ν·u_xx at points (x, t), 0 where u solves the equation; and u_x."""
    u, u_x, u_xx, u_t = derivatives(ops, params, x, t)
    left = ops.add(u_t, ops.mul(u, u_x))
    return ops.sub(left, ops.scale(u_xx, c=VISCOSITY)), u_x


def loss(ops: Ops[R], params: Tree, x: R, t: R, _u: R, *, config: Config) -> R:
    """Mean square of the damped residual at the points; the solution u at them is not used."""
    r, u_x = residual(ops, params, x, t)
    one = ops.full(shape=x.shape, value=1.0, dtype=x.dtype)
    weight = ops.add(one, ops.scale(ops.abs(ops.detach(u_x)), c=config.damping))
    damped = ops.div(r, weight)
    return ops.reduce_mean(ops.mul(damped, damped))


def metrics(ops: Ops[R], params: Tree, x: R, t: R, u: R) -> dict[str, R]:
    """`relative_l2`: √(Σ (û - u)² / Σ u²), against the solution u."""
    off = ops.sub(field(ops, params, x, t), u)
    return {"relative_l2": ops.sum(ops.mul(off, off)), "count": ops.sum(ops.mul(u, u))}


def outputs(ops: Ops[R], params: Tree, x: R, t: R) -> dict[str, R]:
    """`u` at points (x, t)."""
    return {"u": field(ops, params, x, t)}


def make(config: Config) -> Model:
    """Build the model for a config."""
    return Model(
        "pinn",
        config,
        init(config),
        partial(loss, config=config),
        metrics,
        (Spec("B"), Spec("B"), Spec("B")),
        outputs=outputs,
    )


def burgers_points(seed: int) -> Split:
    """Return points of the domain to train on, and the solution on a grid."""
    return burgers.points(seed=seed), burgers.grid()


RECIPE = Recipe(
    data=burgers_points,
    epochs=375,
    batch_size=1024,
    lr=0.01,
    weight_decay=0.0,
    metric="relative_l2",
    goal=0.02,
    lower_is_better=True,
    optimizer="muon",
)
