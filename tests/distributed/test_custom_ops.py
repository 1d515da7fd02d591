"""Ops of users on a mesh: what varies is followed through their definitions, and ranks meet at collectives there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import opstage
from opstage.ops.derived import all_mean
from tests.distributed.compared import assert_close, trained

X, W = np.random.default_rng(0).normal(size=(8, 6)), {"w": np.random.default_rng(1).normal(size=(6, 6))}


def centred(ops: Any, x: Any) -> Any:
    """x without its mean over the rows of all ranks."""
    return x - all_mean(ops, ops.reduce_mean(x, axis=0), axis="data")


def centred_cotangent(ops: Any, g: Any) -> Any:
    """The same in a rule, which runs beneath what varies operands for a program: so it varies the mean itself."""
    mean = ops.vary(all_mean(ops, ops.reduce_mean(g, axis=0), axis="data"), axis="data")
    return g - mean


declared = opstage.custom_vjp(centred)


@declared.defvjp
def _(ops: Any, inputs: Any, outputs: Any, cotangents: Any) -> Any:
    return centred_cotangent(ops, cotangents[0])


defined = opstage.custom_op("centred_rows", operands=("x",), shape=lambda x: x, decomposition=centred)
computed = opstage.custom_op(
    "centred_on_the_host",
    operands=("x",),
    shape=lambda x: x,
    decomposition=centred,
    vjp=lambda ops, ctx, cotangents: (centred_cotangent(ops, cotangents[0]),),
    kernels={"cpu": lambda x: x - x.mean(axis=0)},
)
tripled = opstage.custom_op(
    "tripled_on_the_host",
    operands=("x",),
    shape=lambda x: x,
    vjp=lambda ops, ctx, cotangents: (3.0 * cotangents[0],),
    kernels={"cpu": lambda x: 3 * x},
)
OPS: dict[str, Callable[..., Any]] = {
    "plain": centred,
    "with a vjp": declared,
    "defined": defined,
    "defined, with a kernel": computed,
    "by a kernel": tripled,
}


@pytest.mark.parametrize("backend", ["eager", "compiled"])
@pytest.mark.parametrize("mesh", ["data=2", "data=4"])
@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_it_has_the_numbers_of_one_rank(op: Callable[..., Any], mesh: str, backend: str) -> None:
    def loss(ops: Any, params: Any, x: Any) -> Any:
        return all_mean(ops, ops.reduce_mean(op(ops, x @ params["w"]) ** 4), axis="data")

    run = partial(trained, loss, W, X, rate=0.05, steps=3)
    assert_close(run(mesh=mesh, backend=backend), run(), rtol=1e-12)
