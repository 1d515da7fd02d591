"""Optimizers, clipping and schedules over 50 steps of a small regression, against torch.optim."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

import opstage
from opstage import optim
from opstage.optim import schedule
from opstage.options import Options

STEPS = 50
TOLERANCE = {"float64": 1e-9, "float32": 2e-3}
"""Relative, of every loss on the way and of the parameters at the end: rounding that 50 steps have carried on."""

SHAPES = {"w1": (8, 5), "b1": (8,), "w2": (3, 8)}


def start(names: tuple[str, ...], dtype: str) -> tuple[dict[str, Any], Any, Any]:
    rng = np.random.default_rng(11)
    params = {name: 0.5 * rng.standard_normal(shape) for name, shape in SHAPES.items()}
    x, y = rng.standard_normal((16, 5)), rng.standard_normal((16, 3))
    return {name: params[name].astype(dtype) for name in names}, x.astype(dtype), y.astype(dtype)


def loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
    h = ops.tanh(ops.linear(params["w1"], params.get("b1"), x))
    return ops.mse_loss(ops.linear(params["w2"], None, h), y)


def loss_in_torch(params: Any, x: Any, y: Any) -> Any:
    h = torch.tanh(torch.nn.functional.linear(x, params["w1"], params.get("b1")))
    return torch.nn.functional.mse_loss(torch.nn.functional.linear(h, params["w2"]), y)


def on_opstage(
    optimizer: Any, dtype: str, names: tuple[str, ...], clip: Any = None, device: Any = "cpu"
) -> tuple[list[float], Any]:
    params, x, y = start(names, dtype)
    trainer = opstage.scalar_trainer(loss, params, options=Options(dtype=dtype, device=device), clip=clip)
    state, losses = trainer.init_optim(optimizer), []
    for _ in range(STEPS):
        result = trainer.train_step(optimizer, state, x, y)
        losses.append(float(result.loss))
        state = result.state
    return losses, trainer.get_params()


def on_torch(
    make: Callable[..., Any],
    dtype: str,
    names: tuple[str, ...],
    *,
    scheduled: Any = None,
    clip: Any = None,
    rates: list[float] | None = None,
    device: str = "cpu",
) -> tuple[list[float], Any]:
    """Losses on the way and parameters at the end; `rates` is told the learning rate of every step."""
    arrays, *batch = start(names, dtype)
    params = {name: torch.nn.Parameter(torch.from_numpy(array).to(device)) for name, array in arrays.items()}
    x, y = (torch.from_numpy(array).to(device) for array in batch)
    optimizer = make(list(params.values()))
    scheduler = scheduled(optimizer) if scheduled is not None else None
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        value = loss_in_torch(params, x, y)
        value.backward()
        if clip is not None:
            clip(list(params.values()))
        if rates is not None:
            rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        losses.append(value.item())
    return losses, {name: p.detach().cpu().numpy() for name, p in params.items()}


def assert_same(ours: tuple[list[float], Any], theirs: tuple[list[float], Any], dtype: str) -> None:
    relative = TOLERANCE[dtype]
    np.testing.assert_allclose(ours[0], theirs[0], rtol=relative, err_msg="losses")
    for name, expected in theirs[1].items():
        np.testing.assert_allclose(ours[1][name], expected, rtol=relative, atol=relative, err_msg=name)
    assert theirs[0][-1] < theirs[0][0], "nothing was learned"


torch_optim = torch.optim
OPTIMIZERS: dict[str, tuple[Any, Callable[..., Any]]] = {
    "sgd": (optim.sgd(0.1), lambda p: torch_optim.SGD(p, 0.1)),
    "sgd, decay": (optim.sgd(0.1, weight_decay=0.02), lambda p: torch_optim.SGD(p, 0.1, weight_decay=0.02)),
    "momentum": (
        optim.momentum(0.05, weight_decay=0.01),
        lambda p: torch_optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.01),
    ),
    "nesterov": (optim.nesterov(0.05, momentum=0.8), lambda p: torch_optim.SGD(p, 0.05, momentum=0.8, nesterov=True)),
    "adagrad": (optim.adagrad(0.05), lambda p: torch_optim.Adagrad(p, 0.05)),
    "adagrad, all settings": (
        optim.adagrad(0.05, lr_decay=0.02, weight_decay=0.01, initial_accumulator_value=0.1, eps=1e-6),
        lambda p: torch_optim.Adagrad(
            p, 0.05, lr_decay=0.02, weight_decay=0.01, initial_accumulator_value=0.1, eps=1e-6
        ),
    ),
    "rmsprop": (
        optim.rmsprop(0.01, alpha=0.95, weight_decay=0.01),
        lambda p: torch_optim.RMSprop(p, 0.01, alpha=0.95, weight_decay=0.01),
    ),
    "adam": (optim.adam(0.02), lambda p: torch_optim.Adam(p, 0.02)),
    "adam, all settings": (
        optim.adam(0.02, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.02),
        lambda p: torch_optim.Adam(p, 0.02, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.02),
    ),
    "adamw": (optim.adamw(0.02), lambda p: torch_optim.AdamW(p, 0.02)),
    "adamw, all settings": (
        optim.adamw(0.02, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.2),
        lambda p: torch_optim.AdamW(p, 0.02, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.2),
    ),
    "adamw, groups": (
        optim.grouped(optim.adamw(0.02), {"b*": {"weight_decay": 0.3}, "w2": {"lr": 0.005}}),
        lambda p: torch_optim.AdamW(
            [{"params": p[:1]}, {"params": p[1:2], "weight_decay": 0.3}, {"params": p[2:], "lr": 0.005}], 0.02
        ),
    ),
    "adadelta": (
        optim.adadelta(1.0, rho=0.8, weight_decay=0.01),
        lambda p: torch_optim.Adadelta(p, 1.0, rho=0.8, weight_decay=0.01),
    ),
    "muon": (optim.muon(0.02), lambda p: torch_optim.Muon(p, 0.02)),
    "muon, all settings": (
        optim.muon(0.02, weight_decay=0.0, momentum=0.8, nesterov=False, eps=1e-5, ns_steps=3),
        lambda p: torch_optim.Muon(p, 0.02, 0.0, 0.8, False, eps=1e-5, ns_steps=3),
    ),
}


@contextmanager
def in_its_own_dtype() -> Iterator[None]:
    """`tensor.bfloat16()` is a copy of the tensor inside.

    PyTorch's Muon casts the matrix to bfloat16 before the Newton-Schulz iterations; Opstage iterates in the parameter's
    dtype. Everything else is compared to the last digits.
    """
    with mock.patch.object(torch.Tensor, "bfloat16", torch.Tensor.clone):
        yield


def compare_optimizer(name: str, dtype: str, device: str, torch_device: str) -> None:
    """Muon takes matrices alone, and is compared without PyTorch's rounding to bfloat16."""
    ours, theirs = OPTIMIZERS[name]
    matrices = name.startswith("muon")
    names = ("w1", "w2") if matrices else tuple(SHAPES)
    with in_its_own_dtype() if matrices else contextlib.nullcontext():
        expected = on_torch(theirs, dtype, names, device=torch_device)
    assert_same(on_opstage(ours, dtype, names, device=device), expected, dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer(name: str, dtype: str) -> None:
    compare_optimizer(name, dtype, "cpu", "cpu")


SCHEDULES: dict[str, tuple[Any, Callable[..., Any]]] = {
    "constant": (schedule.constant(0.1), lambda o: lr_scheduler.ConstantLR(o, factor=1.0)),
    "step": (schedule.step(0.1, 7, 0.7), lambda o: lr_scheduler.StepLR(o, 7, 0.7)),
    "exponential": (schedule.exponential(0.1, 0.95), lambda o: lr_scheduler.ExponentialLR(o, 0.95)),
    "cosine": (schedule.cosine(0.1, 50), lambda o: lr_scheduler.CosineAnnealingLR(o, 50)),
    "cosine, up again": (
        schedule.cosine(0.1, 20, eta_min=0.01),
        lambda o: lr_scheduler.CosineAnnealingLR(o, 20, eta_min=0.01),
    ),
    "linear_warmup": (
        schedule.linear_warmup(0.1, 10, 0.2),
        lambda o: lr_scheduler.LinearLR(o, start_factor=0.2, total_iters=10),
    ),
    "warmup_cosine": (
        schedule.warmup_cosine(0.1, 9, 50),
        lambda o: lr_scheduler.SequentialLR(
            o, [lr_scheduler.LinearLR(o, start_factor=0.1, total_iters=9), lr_scheduler.CosineAnnealingLR(o, 41)], [9]
        ),
    ),
    **{
        f"cyclic, {mode}": (
            schedule.cyclic(0.01, 0.1, 6, 9, mode=mode, gamma=0.98),
            lambda o, mode=mode: lr_scheduler.CyclicLR(o, 0.01, 0.1, 6, 9, mode, 0.98, cycle_momentum=False),
        )
        for mode in ("triangular", "triangular2", "exp_range")
    },
    **{
        f"one_cycle, {strategy}{' in three' if three else ''}": (
            schedule.one_cycle(0.1, STEPS + 1, anneal_strategy=strategy, three_phase=three),
            lambda o, strategy=strategy, three=three: lr_scheduler.OneCycleLR(
                o, 0.1, STEPS + 1, anneal_strategy=strategy, three_phase=three, cycle_momentum=False
            ),
        )
        for strategy in ("cos", "linear")
        for three in (False, True)
    },
}


@pytest.mark.filterwarnings("ignore:.*epoch parameter")
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule(name: str) -> None:
    """The rates, and what 50 steps by them come to."""
    ours, theirs = SCHEDULES[name]
    names = tuple(SHAPES)
    rates: list[float] = []

    expected = on_torch(lambda p: torch_optim.SGD(p, 0.1), "float64", names, scheduled=theirs, rates=rates)
    np.testing.assert_allclose([ours(t) for t in range(STEPS)], rates, rtol=1e-9, atol=1e-12)
    assert_same(on_opstage(optim.sgd(ours), "float64", names), expected, "float64")


utils = torch.nn.utils
CLIPS: dict[str, tuple[Any, Callable[..., Any]]] = {
    "by_value": (optim.clip.by_value(0.05), lambda p: utils.clip_grad_value_(p, 0.05)),
    "by_norm": (optim.clip.by_norm(0.1), lambda p: [utils.clip_grad_norm_([one], 0.1) for one in p]),
    "by_global_norm": (optim.clip.by_global_norm(0.2), lambda p: utils.clip_grad_norm_(p, 0.2)),
}


def compare_clipping(name: str, dtype: str, device: str, torch_device: str) -> None:
    ours, theirs = CLIPS[name]
    names = tuple(SHAPES)
    expected = on_torch(lambda p: torch_optim.SGD(p, 0.1, momentum=0.9), dtype, names, clip=theirs, device=torch_device)
    assert_same(on_opstage(optim.momentum(0.1), dtype, names, clip=ours, device=device), expected, dtype)


@pytest.mark.parametrize("name", CLIPS)
def test_clipping(name: str) -> None:
    compare_clipping(name, "float64", "cpu", "cpu")


def test_groups_follow_the_schedule_from_their_own_rates() -> None:
    """PyTorch's schedulers, too, scale each group's own first rate, with one eta_min for all."""
    ours = optim.grouped(optim.momentum(schedule.cosine(0.05, STEPS, 0.001)), {"b1": {"lr": 0.2}})
    theirs = on_torch(
        lambda p: torch_optim.SGD([{"params": [p[0], p[2]]}, {"params": p[1:2], "lr": 0.2}], 0.05, momentum=0.9),
        "float64",
        tuple(SHAPES),
        scheduled=lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=STEPS, eta_min=0.001),
    )
    assert_same(on_opstage(ours, "float64", tuple(SHAPES)), theirs, "float64")
