"""Metrics are sums over a batch; one that is a mean over it is said before a run trains by wrong numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Spec
from opstage.models import MODELS, Model
from opstage.ops.derived import accuracy, correct_count
from opstage.runs.evaluation import check_parts


def small() -> Model:
    module = MODELS["mlp"]
    made: Model = module.make(module.Config(inputs=(4,), hidden=(8,), classes=3))
    return made


def measured(entry: Callable[[Any, Any, Any], dict[str, Any]]) -> Model:
    model = small()

    def metrics(ops: Any, params: Any, x: Any, y: Any) -> dict[str, Any]:
        return entry(ops, ops.linear(params["layers"][0]["weight"], None, x), y)

    return replace(model, metrics=metrics)


MEANS: dict[str, tuple[list[str], Any]] = {
    "sums": ([], lambda ops, z, y: {"right": correct_count(ops, z, y), "loss": ops.sum(z)}),
    "a sum and its count": ([], lambda ops, z, y: {"off": ops.sum(ops.mul(z, z)), "count": ops.sum(z)}),
    "a mean": (["loss"], lambda ops, z, y: {"loss": ops.reduce_mean(z)}),
    "a share": (["right"], lambda ops, z, y: {"right": accuracy(ops, z, y), "loss": ops.sum(z)}),
    "a loss": (["loss"], lambda ops, z, y: {"loss": ops.cross_entropy(z, y)}),
    "a squared error": (["mse"], lambda ops, z, y: {"mse": ops.mse_loss(z, ops.exp(z))}),
}


@pytest.mark.parametrize("name", MEANS)
def test_a_mean_is_found(name: str) -> None:
    wrong, entry = MEANS[name]
    found = check_parts(measured(entry), Options())
    assert [finding.reason.partition("'")[2].partition("'")[0] for finding in found] == wrong


@pytest.mark.parametrize("name", MODELS)
def test_those_of_the_shipped_models_are_sums(name: str) -> None:
    module = MODELS[name]
    assert not check_parts(module.make(module.Config()), Options())


def test_a_run_says_it_before_it_trains() -> None:
    model = measured(MEANS["a mean"][1])
    data = {"x": np.zeros((10, 4), "float32"), "y": np.arange(10) % 3}
    with pytest.raises(opstage.UsageError, match=r"'loss' is a mean over the batch, but metrics are sums"):
        opstage.fit(model, data, epochs=1, batch_size=4, progress=False)


def ignoring(ops: Any, params: Any, x: Any, y: Any) -> Any:
    return ops.cross_entropy(ops.matmul(x, params), y, ignore_index=-1)


def weighted(ops: Any, params: Any, x: Any, y: Any) -> Any:
    return ops.cross_entropy(ops.matmul(x, params), y, weight=ops.const(np.array([0.1, 3.0, 1.0])), ignore_index=-1)


@pytest.mark.parametrize("backend", ["eager", "compiled"])
@pytest.mark.parametrize("loss", [ignoring, weighted])
def test_a_loss_alone_is_that_of_all_held_out_rows(loss: Any, backend: str) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(600, 4)), np.sort(rng.integers(-1, 3, 600))
    y[:300] = -1  # a whole batch in which nothing counts
    model = opstage.Model("m", None, np.ones((4, 3)), loss, None, (Spec("B 4"), Spec("B", dtype="int64")))
    options = opstage.Options(backend=backend, dtype="float64")
    data = {"x": x, "y": y}, {"x": x, "y": y}
    settings = {"run": {"require_finite": False}}
    trained = opstage.fit(model, data, epochs=1, batch_size=600, options=options, settings=settings, progress=False)
    whole = opstage.run(loss, trained.trainer.get_params(), x, y, options=options)
    assert trained.evaluate()["loss"] == trained.results[-1].held_out["loss"] == pytest.approx(float(whole), rel=1e-12)


def test_held_out_rows_of_which_none_counts_have_no_mean() -> None:
    x, y = np.ones((8, 4)), np.arange(8) % 3
    model = opstage.Model("m", None, np.ones((4, 3)), ignoring, None, (Spec("B 4"), Spec("B", dtype="int64")))
    with pytest.raises(opstage.NotFiniteError, match="held-out loss is nan"):
        opstage.fit(model, ({"x": x, "y": y}, {"x": x, "y": y * 0 - 1}), epochs=1, batch_size=4, progress=False)
