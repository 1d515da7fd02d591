"""Where Opstage differs from PyTorch on purpose: what each does, why, and a check that both still do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

import opstage
from opstage.ops import derived
from opstage.ops.errors import LocatedError, OpstageError
from opstage.options import Options
from tests.optim.updates import updated

FLOAT64 = Options(dtype="float64")


@dataclass(frozen=True)
class Deviation:
    """`check()` raises AssertionError unless PyTorch and Opstage both do what is said of them."""

    op: str
    pytorch: str
    opstage: str
    reason: str
    check: Callable[[], None]


DEVIATIONS: list[Deviation] = []


def deviation(op: str, pytorch: str, opstage: str, reason: str) -> Callable[[Callable[[], None]], None]:
    """Add a deviation, whose check is the function."""
    return lambda check: DEVIATIONS.append(Deviation(op, pytorch, opstage, reason, check))


def _fails(program: Callable[..., Any], *args: Any, error: type[Exception] = LocatedError) -> None:
    try:
        opstage.run(program, *args, options=FLOAT64)
    except error:
        return
    raise AssertionError("Opstage raised nothing")


@deviation(
    "squeeze",
    "leaves a named axis whose size is not 1",
    "a ShapeError",
    "with symbolic sizes the rank of the result would depend on a value; and it is a slip",
)
def _squeeze() -> None:
    assert torch.squeeze(torch.ones(2, 3), 0).shape == (2, 3)
    _fails(lambda ops, x: ops.squeeze(x, axis=0), np.ones((2, 3)))


@deviation(
    "softplus",
    "x itself above 20 (`threshold`)",
    "log(1 + eˣ) everywhere",
    "PyTorch's is 2e-9 off at 20, more than float64's tolerance; the op never overflows without it",
)
def _softplus() -> None:
    x = np.array([20.5])
    ours = opstage.run(lambda ops, v: ops.softplus(v), x, options=FLOAT64)
    assert functional.softplus(torch.from_numpy(x)).item() == 20.5 < ours.item()
    assert abs(ours.item() - np.logaddexp(0.0, 20.5)) < 1e-14


@deviation("div", "integers divide to floats", "a DtypeError that says to cast", "no op changes a dtype unasked")
def _division_of_integers() -> None:
    x = np.array([1, 2])
    assert (torch.from_numpy(x) / 2).dtype == torch.float32
    _fails(lambda ops, v: ops.div(v, v), x)


@deviation("add", "an integer tensor and a float tensor give floats", "a DtypeError", "the same")
def _mixed_dtypes() -> None:
    x, n = np.ones(2), np.array([1, 2])
    assert (torch.from_numpy(x) + torch.from_numpy(n)).dtype == torch.float64
    _fails(lambda ops, a, b: a + b, x, n)


@deviation("sum", "counts booleans", "a DtypeError that says to cast", "the same")
def _sum_of_masks() -> None:
    x = np.array([True, False])
    assert torch.from_numpy(x).sum().item() == 1
    _fails(lambda ops, v: ops.sum(v), x)


@deviation(
    "add",
    "`torch.add` broadcasts",
    "infix broadcasts, named ops do not",
    "derivative rules are written in named ops; what a gradient is summed over is then in the program",
)
def _broadcasting() -> None:
    x, y = np.ones((2, 3)), np.ones(3)
    assert torch.add(torch.from_numpy(x), torch.from_numpy(y)).shape == (2, 3)
    _fails(lambda ops, a, b: ops.add(a, b), x, y)


@deviation(
    "gather_vec",
    "an index of -1 is the last entry",
    "out of range",
    "indices are natural numbers in the reference system",
)
def _negative_index() -> None:
    x = np.arange(3.0)
    assert torch.from_numpy(x)[-1].item() == 2
    _fails(lambda ops, v: ops.gather_scalar(v, index=-1), x)
    _fails(lambda ops, v, i: ops.gather_vec(v, i), x, np.array([-1]), error=OpstageError)


@deviation(
    "derived.einsum",
    "`...` stands for leading axes",
    "a ShapeError: each axis has a letter",
    "an equation then says the rank of each operand",
)
def _ellipsis() -> None:
    x = np.ones((2, 3, 4))
    assert torch.einsum("...ij->...ji", torch.from_numpy(x)).shape == (2, 4, 3)
    _fails(lambda ops, v: derived.einsum(ops, "...ij->...ji", v), x)


@deviation(
    "rms_norm",
    "a row whose squares overflow becomes zeros",
    "nan, as in `layer_norm`, where PyTorch gives nan too",
    "zeros would be a wrong answer that nobody sees",
)
def _overflowed_squares() -> None:
    x = np.array([[1e200, -1e200, 3e200, 0.0]])
    assert not functional.rms_norm(torch.from_numpy(x), (4,)).any()
    assert torch.isnan(functional.layer_norm(torch.from_numpy(x), (4,))).all()
    assert np.isnan(opstage.run(lambda ops, v: ops.rms_norm(v, None), x, options=FLOAT64)).all()
    assert np.isnan(opstage.run(lambda ops, v: ops.layer_norm(v, None, None), x, options=FLOAT64)).all()


@deviation(
    "optim.muon",
    "iterates in bfloat16, whatever the parameter's dtype",
    "iterates in the parameter's dtype",
    "the same digits on every interpreter; with that one cast taken out of PyTorch the two agree",
)
def _muon() -> None:
    """With its cast PyTorch's step is that of bfloat16, three digits; without it the steps agree (test_optimizers)."""
    rng = np.random.default_rng(7)
    p, g = rng.standard_normal((6, 4)), rng.standard_normal((6, 4))
    parameter = torch.nn.Parameter(torch.from_numpy(p.copy()))
    parameter.grad = torch.from_numpy(g.copy())
    torch.optim.Muon([parameter], 1.0, weight_decay=0.0).step()
    update = updated(opstage.optim.muon(1.0, weight_decay=0.0))
    ours, _ = opstage.run(update, p, g, np.zeros_like(p), np.array(1.0), options=FLOAT64)
    difference = np.abs(ours - parameter.detach().numpy()).max()
    assert 1e-5 < difference < 5e-2, difference
