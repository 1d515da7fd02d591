"""The forward programs of the shipped models as ONNX models, at two batch sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import opstage
from opstage import Options, Spec, optim
from opstage.interpreters.graph.recorder import replay
from opstage.interpreters.registry import make_interpreter
from opstage.models import MODELS, Model, gpt, mlp, model, vae
from opstage.ops.trees import flatten
from opstage.program_arguments import with_train
from opstage.training.program_check import record_model
from tests.conformance.harness import leaves
from tests.interop.onnx.exported import PROGRAMS, moved, prediction
from tests.interop.onnx.runs import checked, operators, run_session, session_of
from tests.models.common import batch_of

FLOAT32 = Options(dtype="float32", fast_kernels=False)
FLOAT64 = Options(dtype="float64", fast_kernels=False)
ROWS = (2, 3)

SMALL = {"gpt": gpt.Config(width=32, depth=2, heads=2, hidden=48)}
"""Of a model of many blocks alike two."""
CONVOLVE = {"cnn", "resnet", "unet", "vit"}


def held(made: Model) -> tuple[Any, ...]:
    return moved(made, "float64")


def agree(
    program: Callable[..., Any], trees: tuple[Any, ...], specs: tuple[Spec, ...], name: str, options: Options
) -> None:
    graph = opstage.record(program, *trees, *specs, options=options)
    session = session_of(checked(graph), optimized=options.dtype == "float32")
    for rows in ROWS:
        batch = batch_of(name, rows)[: len(specs)]
        actual = run_session(session, graph, *trees, *batch)
        expected = leaves(opstage.run(program, *trees, *batch, options=options))
        close(graph.output_names, actual, expected, 1e-4 if options.dtype == "float32" else 1e-10)


def close(names: Sequence[str], actual: Sequence[Any], expected: Sequence[Any], tolerance: float) -> None:
    """Within `tolerance` of the largest element of each output."""
    assert [a.shape for a in actual] == [e.shape for e in expected]
    for path, a, e in zip(names, actual, expected):
        np.testing.assert_allclose(a, e, rtol=tolerance, atol=tolerance * np.abs(e).max(), err_msg=path)


def predictions_agree(name: str, options: Options) -> None:
    made = model(name, SMALL.get(name))
    agree(prediction(name, made.config), held(made), made.batch[: PROGRAMS[name][1]], name, options)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_predictions(name: str) -> None:
    predictions_agree(name, FLOAT32)


@pytest.mark.parametrize("name", sorted(set(MODELS) - CONVOLVE))
def test_predictions_in_float64(name: str) -> None:
    """To the last digits, where the runtime has kernels in float64: it convolves in float32 alone."""
    predictions_agree(name, FLOAT64)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_metrics(name: str) -> None:
    """The whole program that evaluates a model: its predictions, its loss and what else is counted."""
    made = model(name, SMALL.get(name))
    agree(made.metrics, held(made), made.batch, name, FLOAT32)


@pytest.mark.parametrize("name", ["cnn", "lstm", "mlp", "vae", "vit"])
def test_losses_in_training(name: str) -> None:
    """With what a training step draws: the noise of the vae, the masks of dropout."""
    made = model(name)
    agree(with_train(made.loss, True), held(made), made.batch, name, FLOAT32)


@pytest.mark.parametrize("name", ["lstm", "mlp", "vae"])
def test_losses_in_training_in_float64(name: str) -> None:
    """To the last digits, as no other draws would give them."""
    made = model(name)
    agree(with_train(made.loss, True), held(made), made.batch, name, FLOAT64)


def test_what_the_vae_makes_of_latent_numbers() -> None:
    made = model("vae")
    program = partial(vae.decode, config=made.config)
    (params,) = held(made)
    graph = opstage.record(program, params, Spec(("B", made.config.latent)), options=FLOAT32)
    session = session_of(checked(graph), optimized=True)
    for rows in ROWS:
        z = np.random.default_rng(rows).standard_normal((rows, made.config.latent)).astype(np.float32)
        (actual,) = run_session(session, graph, params, z)
        close(["x"], [actual], [opstage.run(program, params, z, options=FLOAT32)], 1e-4)


def test_a_loop_is_one_node() -> None:
    graph = record_model(model("lstm"), FLOAT32)
    nodes = checked(graph).graph.node
    assert [node.op_type for node in nodes].count("Scan") == 1


def test_operators_of_onnx_are_used_where_they_say_the_same() -> None:
    made = model("gpt")
    program = partial(gpt.logits, config=made.config)
    found = operators(checked(opstage.record(program, *held(made), made.batch[0], options=FLOAT32)))
    assert {"LayerNormalization", "Gelu", "Gather", "MatMul"} <= found


def test_parameters_that_are_given_are_constants(tmp_path: Path) -> None:
    made = model("mlp")
    (params,) = held(made)
    program = partial(mlp.logits, config=made.config)
    graph = opstage.record(program, params, made.batch[0], options=FLOAT32)
    path = tmp_path / "mlp.onnx"
    graph.to_onnx(path, {"params": params})
    written = onnx.load(path)
    assert [given.name for given in written.graph.input] == ["x"]
    names = {name for name in graph.input_names if name != "x"}
    assert names <= {constant.name for constant in written.graph.initializer}
    (x, _) = batch_of("mlp", 3)
    (actual,) = run_session(session_of(written), graph, params, x)
    close(["logits"], [actual], [opstage.run(program, params, x, options=FLOAT32)], 1e-5)


def test_a_whole_training_step() -> None:
    """Backward pass and update are ops as any other: one step of a model with dropout, its batch size symbolic."""
    made = mlp.make(mlp.Config(dropout=0.5, hidden=(16,)))
    graph = record_model(made, FLOAT32, optim.adamw(lr=0.01))
    session = session_of(checked(graph))
    (params,) = held(made)
    rng = np.random.default_rng(0)
    given = dict(zip(graph.input_names, flatten(params)[0]))
    batch = dict(zip("xy", batch_of("mlp", 4)))
    for name, type_ in zip(graph.input_names, graph.input_types):
        if name not in given and name != "step":
            given[name] = batch[name] if name in batch else rng.uniform(0.1, 1.0, type_.shape).astype(np.float32)
    values = list(given.values())
    ops = make_interpreter(FLOAT32)
    sized = record_model(made, FLOAT32, optim.adamw(lr=0.01), sizes={"B": 4})
    for step in (0, 7):
        expected = [ops.get(ref) for ref in replay(ops, sized, [ops.put(value) for value in values], step)]
        close(graph.output_names, run_session(session, graph, values, step=step), expected, 1e-4)
    assert [made.name for made in session.get_outputs()][:2] == ["loss", "params.layers.0.bias.new"]
