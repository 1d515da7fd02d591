"""What no proof can know, whether a program of collectives means what one rank computes: compared, in a test."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import derived
from opstage.testing import assert_like_one_rank

WIDTH, LENGTH = 4, 8


def _ring(shifts: int, mean: bool, ops: Any, params: Any, x: Any) -> Any:
    """Ring attention (Liu et al. 2023): each rank has a part of the sequence, and keys and values go around."""
    own = ops.shard(x, axis="seq", dim=1)
    q, keys, values = (ops.linear(params[name], None, own) for name in ("q", "k", "v"))
    total: Any = None
    for i in range(ops.mesh.size("seq")):
        e = ops.exp(ops.bmm(q, ops.permute(keys, axes=(0, 2, 1))))
        part = ops.bmm(e, values), ops.reduce_sum(e, axis=2, keepdims=True)
        total = part if total is None else tuple(ops.add(a, b) for a, b in zip(total, part))
        if i < shifts:
            keys, values = ops.shift(keys, axis="seq"), ops.shift(values, axis="seq")
    out = ops.div(total[0], ops.broadcast_to(total[1], shape=total[0].shape))
    error = ops.reduce_mean(ops.mul(out, out))
    return derived.all_mean(ops, error, axis="seq") if mean else ops.all_reduce(error, axis="seq")


def _compare(loss: Callable[..., Any], mesh: str) -> None:
    rng = np.random.default_rng(0)
    params = {name: 0.5 * rng.standard_normal((WIDTH, WIDTH)) for name in ("q", "k", "v")}
    assert_like_one_rank(loss, params, rng.standard_normal((4, LENGTH, WIDTH)), mesh=mesh)


@pytest.mark.parametrize("mesh", ["seq=2", "seq=4", "data=2,seq=4"])
def test_a_right_one(mesh: str) -> None:
    _compare(partial(_ring, LENGTH, True), mesh)


@pytest.mark.parametrize(
    "shifts, mean, name", [(0, True, "loss"), (1, True, "loss"), (LENGTH, False, "loss")], ids=["none", "one", "sum"]
)
def test_a_wrong_one_is_told(shifts: int, mean: bool, name: str) -> None:
    with pytest.raises(AssertionError, match=f"on mesh data=2,seq=4 the step has another {name} than on one rank"):
        _compare(partial(_ring, shifts, mean), "data=2,seq=4")


def test_a_new_state_is_compared() -> None:
    def loss(ops: Any, params: Any, state: Any, x: Any) -> Any:
        out = ops.linear(params["w"], None, x)
        peak = ops.all_reduce(ops.reduce_max(ops.detach(out), axis=(0, 1)), axis="data")  # for all_max
        return ops.reduce_mean(ops.mul(out, out)), opstage.Aux(state={"peak": peak})

    rows = np.random.default_rng(0).standard_normal((8, WIDTH))
    with pytest.raises(AssertionError, match=r"another state\.peak"):
        assert_like_one_rank(loss, {"w": np.eye(WIDTH)}, rows, mesh="data=2", state={"peak": np.zeros(())})
