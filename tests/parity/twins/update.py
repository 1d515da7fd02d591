"""Twins: one step of an optimizer, from state that earlier steps would have left; whole runs are in test_optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.parity.full_precision import in_its_own_dtype
from tests.parity.twin import Arrays, Case, Twin

_NO_GRADIENT = "PyTorch's optimizers step outside of autograd"
_LR, _T = 0.02, 3


def _operands(positive: tuple[bool, ...], scalars: tuple[float, ...], shape: tuple[int, ...]) -> Arrays:
    """Parameter, gradient, state (squares are positive), and the scalars of step _T."""

    def make(rng: Any) -> tuple[Any, ...]:
        state = [rng.uniform(0.1, 1.0, shape) if p else rng.standard_normal(shape) for p in positive]
        return rng.standard_normal(shape), rng.standard_normal(shape), *state, *scalars

    return make


def _stepped(make: Callable[..., Any], names: tuple[str, ...]) -> Any:
    """(p, g, *state, *scalars) -> (new p, *new state), by one step of the optimizer `make(params, **static)`."""

    def step(p: Any, g: Any, *rest: Any, **static: Any) -> tuple[torch.Tensor, ...]:
        parameter = torch.nn.Parameter(p.detach().clone())
        parameter.grad = g.detach().clone()
        optimizer = make([parameter], **static)
        state = {name: value.detach().clone() for name, value in zip(names, rest)}
        optimizer.state[parameter].update(state, step=torch.tensor(_T - 1.0))
        optimizer.step()
        return parameter.detach(), *(optimizer.state[parameter][name] for name in names)

    return step


def _sgd(params: Any, weight_decay: float, momentum: float = 0.0, nesterov: bool = False) -> Any:
    return torch.optim.SGD(params, _LR, momentum, weight_decay=weight_decay, nesterov=nesterov)


def _adagrad(params: Any, **static: Any) -> Any:
    return torch.optim.Adagrad(params, _LR, **static)


def _rmsprop(params: Any, **static: Any) -> Any:
    return torch.optim.RMSprop(params, _LR, **static)


def _adam(params: Any, beta1: float, beta2: float, **static: Any) -> Any:
    return torch.optim.Adam(params, _LR, (beta1, beta2), **static)


def _adamw(params: Any, beta1: float, beta2: float, **static: Any) -> Any:
    return torch.optim.AdamW(params, _LR, (beta1, beta2), **static)


def _adadelta(params: Any, **static: Any) -> Any:
    return torch.optim.Adadelta(params, _LR, **static)


def _muon(params: Any, steps: int, **static: Any) -> Any:
    return torch.optim.Muon(params, _LR, ns_steps=steps, **static)


_CORRECTIONS = (_LR, 1 - 0.9**_T, 1 - 0.999**_T)
_BETAS = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}


def _cases(
    positive: tuple[bool, ...], scalars: tuple[float, ...], statics: Any, shapes: Any = ((), (5,), (3, 4))
) -> Any:
    return tuple(
        Case(f"{shape} {static}", _operands(positive, scalars, shape), static, terms=2)
        for shape in shapes
        for static in ({**s, "weight_decay": decay} for s in statics for decay in (0.0, 0.1))
    )


def _muon_step(*args: Any, **static: Any) -> Any:
    with in_its_own_dtype():
        return _stepped(_muon, ("momentum_buffer",))(*args, **static)


_MUON = {"momentum": 0.95, "nesterov": True, "steps": 5, "eps": 1e-7}

TWINS: list[Twin] = [
    Twin("sgd_update", _stepped(_sgd, ()), _cases((), (_LR,), ({},)), gradient=_NO_GRADIENT),
    Twin(
        "momentum_update",
        _stepped(_sgd, ("momentum_buffer",)),
        _cases((False,), (_LR,), ({"momentum": 0.9, "nesterov": False}, {"momentum": 0.8, "nesterov": True})),
        gradient=_NO_GRADIENT,
    ),
    Twin(
        "adagrad_update",
        _stepped(_adagrad, ("sum",)),
        _cases((True,), (_LR,), ({"eps": 1e-10},)),
        gradient=_NO_GRADIENT,
    ),
    Twin(
        "rmsprop_update",
        _stepped(_rmsprop, ("square_avg",)),
        _cases((True,), (_LR,), ({"alpha": 0.9, "eps": 1e-8},)),
        gradient=_NO_GRADIENT,
    ),
    Twin(
        "adam_update",
        _stepped(_adam, ("exp_avg", "exp_avg_sq")),
        _cases((False, True), _CORRECTIONS, (_BETAS,)),
        gradient=_NO_GRADIENT,
    ),
    Twin(
        "adamw_update",
        _stepped(_adamw, ("exp_avg", "exp_avg_sq")),
        _cases((False, True), _CORRECTIONS, (_BETAS,)),
        gradient=_NO_GRADIENT,
    ),
    Twin(
        "adadelta_update",
        _stepped(_adadelta, ("square_avg", "acc_delta")),
        _cases((True, True), (_LR,), ({"rho": 0.9, "eps": 1e-6},)),
        gradient=_NO_GRADIENT,
    ),
    Twin(
        "muon_update",
        _muon_step,
        tuple(
            Case(f"{shape} {static}", _operands((False,), (_LR,), shape), static, terms=100)
            for shape in ((4, 4), (3, 7), (8, 2), (30, 20))
            for static in ({**_MUON, "weight_decay": 0.1}, {**_MUON, "weight_decay": 0.0, "nesterov": False})
        ),
        gradient=_NO_GRADIENT,
    ),
]
