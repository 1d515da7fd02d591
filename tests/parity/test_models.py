"""Every shipped model against PyTorch, from the same weights: the loss of each of 20 steps of AdamW."""

from __future__ import annotations

from typing import Any

import numpy as np
import optree
import pytest
import torch

import opstage
from opstage import models as zoo
from opstage import optim
from opstage.init import build
from opstage.options import Options
from tests.parity.models import MODELS, ModelTwin

TOLERANCE = {"float64": 1e-7, "float32": 1e-3}
"""Relative, of a loss: Adam divides by √v, which makes rounding of small gradients into steps of full size."""
RATE, DECAY = 2e-3, 0.01


def test_every_shipped_model_is_compared() -> None:
    assert set(MODELS) == set(zoo.MODELS)


def on_torch(twin: ModelTwin, arrays: Any, state: Any, batches: list[Any], device: str) -> tuple[list[float], Any]:
    def tensor(array: Any) -> torch.Tensor:
        return torch.from_numpy(np.array(array)).to(device)

    params = optree.tree_map(lambda a: torch.nn.Parameter(tensor(a)), arrays)
    statistics = optree.tree_map(tensor, state)
    optimizer = torch.optim.AdamW(optree.tree_leaves(params), RATE, weight_decay=DECAY)
    losses = []
    for step, batch in enumerate(batches):
        optimizer.zero_grad()
        # a model without statistics is told the step instead: it may draw random numbers
        given = {"step": step} if state is None else statistics
        with torch.device(device):  # for what a twin makes
            loss = twin.loss(params, given, *map(tensor, batch))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, statistics


def on_opstage(model: Any, arrays: Any, state: Any, batches: list[Any], options: Options) -> tuple[list[float], Any]:
    trainer = opstage.scalar_trainer(model.loss, arrays, *model.batch, options=options, state=state)
    optimizer = optim.adamw(RATE, weight_decay=DECAY)
    moments, losses = trainer.init_optim(optimizer), []
    for batch in batches:
        result = trainer.train_step(optimizer, moments, *batch)
        moments = result.state
        losses.append(float(result.loss))
    return losses, trainer.state


def compare_loss_curve(name: str, options: Options, torch_device: str) -> None:
    dtype = options.dtype
    twin = MODELS[name]
    model = zoo.model(name, twin.config)
    arrays = build(model.init, dtype=dtype, seed=3)
    state = None if model.state is None else build(model.state, dtype=dtype, seed=3)
    batches = twin.batches(dtype)
    expected, statistics = on_torch(twin, arrays, state, batches, torch_device)
    losses, own = on_opstage(model, arrays, state, batches, options)
    np.testing.assert_allclose(losses, expected, rtol=TOLERANCE[dtype])
    assert min(losses[-5:]) < losses[0], "nothing was learned"
    for ours, theirs in zip(optree.tree_leaves(own), optree.tree_leaves(statistics)):
        np.testing.assert_allclose(ours, theirs.cpu().numpy(), rtol=10 * TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", MODELS)
def test_loss_curve(name: str, dtype: Any) -> None:
    compare_loss_curve(name, Options(dtype=dtype), "cpu")
