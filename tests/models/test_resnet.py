"""The residual network: its running statistics and its two forms."""

from __future__ import annotations

import numpy as np
import pytest

from opstage import optim
from opstage.models import resnet
from opstage.ops.trees import flatten, paths
from opstage.training.trainer import ScalarTrainer, scalar_trainer
from opstage.training.validate import check_step

from .common import FLOAT64, batch_of, built

SMALL = resnet.make(resnet.Config(channels=(4, 6), blocks=1))


def trainer() -> ScalarTrainer:
    return scalar_trainer(SMALL.loss, built(SMALL.init), options=FLOAT64, state=built(SMALL.state))


def stem_by_hand(kernel: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The stem's convolution of (B, 1, 8, 8) with (4, 1, 3, 3)."""
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x[:, 0], ((0, 0), (1, 1), (1, 1))), (3, 3), axis=(1, 2))
    return np.einsum("bijkl,okl->boij", windows, kernel[:, 0])


def test_every_normalization_has_its_statistics() -> None:
    gammas = [path.removesuffix(".norm.gamma") for path in paths(SMALL.init) if path.endswith(".gamma")]
    assert gammas == [path.removesuffix(".mean") for path in paths(SMALL.state) if path.endswith(".mean")]


def test_the_report_of_a_check_names_the_statistics() -> None:
    report = check_step(SMALL.loss, SMALL.init, *SMALL.batch, state=SMALL.state)
    names = [name for name, _ in report.inputs]
    assert [name for name in names if name.startswith("state")] == [f"state.{path}" for path in paths(SMALL.state)]


def test_a_step_moves_the_running_statistics_by_a_tenth() -> None:
    made, (x, y) = trainer(), batch_of("resnet", 16)
    values = stem_by_hand(made.get_params()["stem"]["conv"]["kernel"], x.astype(np.float64))
    made.step(0.1, x, y)
    mean, variance = values.mean(axis=(0, 2, 3)), values.var(axis=(0, 2, 3), ddof=1)
    np.testing.assert_allclose(made.state["stem"]["mean"], 0.1 * mean, rtol=1e-10)
    np.testing.assert_allclose(made.state["stem"]["variance"], 0.9 + 0.1 * variance, rtol=1e-10)


def test_evaluation_takes_the_running_statistics_and_leaves_them() -> None:
    made, (x, y) = trainer(), batch_of("resnet", 16)
    optimizer = optim.adam(lr=1e-2)
    state = made.init_optim(optimizer)
    for _ in range(5):
        state = made.step_with(optimizer, state, x, y)
    before, _ = flatten(made.state)
    together = made.evaluate(SMALL.metrics, x, y)
    alone = [made.evaluate(SMALL.metrics, x[i : i + 1], y[i : i + 1]) for i in range(16)]
    for name, value in together.items():  # a sample is judged alike whoever is in its batch
        assert float(value) == pytest.approx(sum(float(each[name]) for each in alone), rel=1e-10)
    for old, new in zip(before, flatten(made.state)[0]):
        np.testing.assert_array_equal(old, new)
    assert abs(float(made.forward(x, y)) - float(made.forward(x, y, train=True))) > 1e-3
