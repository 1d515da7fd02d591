"""Training on the compiled backend: the eager one's numbers, few compilations, constant memory."""

from __future__ import annotations

import gc
import logging
import os
import resource
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Aux, Options, Spec
from opstage.interpreters.graph.recorder import replay
from opstage.interpreters.registry import make_interpreter
from opstage.models import cnn, gpt, lstm, mlp, pinn, resnet, unet, vae, vit
from opstage.models.model import MODELS
from opstage.ops.splitmix import draw_site, stream_key, uniform_bits
from opstage.ops.trees import flatten, map_leaves
from opstage.optim import schedule
from tests.graph.executor_common import close_arrays, same_arrays
from tests.graph.regression import regression, sample, start
from tests.models.common import batch_of, built
from tests.processes import alone

SMALL: dict[str, Any] = {
    "cnn": cnn.Config(channels=(3, 4), dense=12),
    "gpt": gpt.Config(length=8, width=12, depth=2, heads=3, hidden=20),
    "lstm": lstm.Config(hidden=6),
    "mlp": mlp.Config(hidden=(12, 9)),
    "pinn": pinn.Config(hidden=(8, 8)),
    "resnet": resnet.Config(channels=(4, 6), blocks=1),
    "unet": unet.Config(channels=(4, 8), groups=2),
    "vae": vae.Config(hidden=(12, 10), latent=3),
    "vit": vit.Config(embedding=8, depth=2, heads=2, hidden=12),
}
STEPS, ROWS = 20, 6
QUICK = ("mlp", "vae")
"""The models of few kernels; making the code of the others takes up to a minute."""


def models(*dtypes: tuple[str, float]) -> list[Any]:
    """Every model in every dtype, all but the quick ones in the first dtype marked slow."""
    return [
        pytest.param(name, *dtype, marks=[] if name in QUICK and dtype is dtypes[0] else pytest.mark.slow)
        for name in sorted(SMALL)
        for dtype in dtypes
    ]


def batches(name: str) -> list[tuple[np.ndarray, ...]]:
    """The first rows of the recipe's data, a few at a time; for gpt windows of a short text."""
    if name == "gpt":
        text = np.frombuffer((" ".join(str(i * i) for i in range(200))).encode(), dtype=np.uint8).astype(np.int64)
        starts = [np.arange(ROWS) * 7 + step for step in range(STEPS)]
        return [tuple(np.stack([text[s + k : s + k + 8] for s in at]) for k in (0, 1)) for at in starts]
    arrays = batch_of(name, STEPS * ROWS)
    return [tuple(a[i * ROWS : (i + 1) * ROWS] for a in arrays) for i in range(STEPS)]


def trainer_of(name: str, options: Options) -> opstage.ScalarTrainer:
    made = MODELS[name].make(SMALL[name])
    generator = np.random.default_rng(0)
    params = map_leaves(lambda p: p + 0.05 * generator.normal(size=p.shape), built(made.init))
    return opstage.scalar_trainer(made.loss, params, options=options, state=built(made.state))


@pytest.fixture
def compilations(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], int]]:
    """How many programs were compiled so far in this test."""
    with caplog.at_level(logging.DEBUG, "opstage.interpreters.graph"):
        yield lambda: sum(record.getMessage().startswith("compiling for") for record in caplog.records)


# Numbers --------------------------------------------------------------------------------------------------------------


def test_every_shipped_model_is_here() -> None:
    assert set(SMALL) == set(MODELS)


@pytest.mark.parametrize(("name", "dtype", "tolerance"), models(("float64", 1e-12), ("float32", 1e-5)))
def test_loss_and_gradients_are_the_eager_ones_along_twenty_steps(name: str, dtype: Any, tolerance: float) -> None:
    """Both stand at the same parameters in every step, those that eager training reaches."""
    options = Options(dtype=dtype, seed=3)
    eager, compiled = trainer_of(name, options), trainer_of(name, options.replace(backend="compiled"))
    optimizer = opstage.optim.adamw(lr=3e-3)
    states = eager.init_optim(optimizer), compiled.init_optim(optimizer)
    for batch in batches(name):
        compiled.set_params(eager.get_params())
        compiled.set_state(eager.state)
        (expected, expected_gradients), (loss, gradients) = (t.loss_and_backward(*batch) for t in (eager, compiled))
        np.testing.assert_allclose(loss, expected, rtol=tolerance)
        scale = max(np.abs(g).max() for g in flatten(expected_gradients)[0])
        close_arrays(flatten(gradients)[0], flatten(expected_gradients)[0], rtol=tolerance, atol=tolerance * scale)
        results = [t.train_step(optimizer, s, *batch) for t, s in zip((eager, compiled), states)]
        np.testing.assert_allclose(results[1].loss, results[0].loss, rtol=tolerance)
        states = results[0].state, results[1].state


@pytest.mark.parametrize(("name", "dtype", "tolerance"), models(("float64", 1e-10)))
def test_two_runs_of_training_stay_together(name: str, dtype: Any, tolerance: float) -> None:
    """Each from its own parameters: rounding alone comes between them; draws are the same bits."""
    options = Options(dtype=dtype, seed=3)
    trainers = trainer_of(name, options), trainer_of(name, options.replace(backend="compiled"))
    for batch in batches(name):
        eager, compiled = (trainer.step(1e-2, *batch) for trainer in trainers)
        np.testing.assert_allclose(compiled, eager, rtol=tolerance)
    close_arrays(*(flatten((t.get_params(), t.state))[0] for t in trainers), rtol=100 * tolerance, atol=tolerance)
    eager, compiled = (trainer.forward(*batches(name)[0]) for trainer in trainers)
    np.testing.assert_allclose(compiled, eager, rtol=tolerance)


def test_two_runs_on_the_compiled_backend_have_equal_bits() -> None:
    found = []
    for _ in range(2):
        trainer = trainer_of("mlp", Options(backend="compiled", seed=3))
        for batch in batches("mlp"):
            trainer.adam_step(1e-2, 0.9, 0.999, 1e-8, *batch)
        found.append(flatten(trainer.get_params())[0])
    same_arrays(*found)


def parts(name: str) -> tuple[Any, tuple[Any, ...]]:
    """A model, and its first arguments: parameters and, if it has one, state."""
    made = MODELS[name].make(SMALL[name])
    return made, (built(made.init),) if made.state is None else (built(made.init), built(made.state))


@pytest.mark.parametrize("name", sorted(SMALL))
def test_models_are_recorded_for_every_batch_size_and_their_graphs_mean_what_they_do(name: str) -> None:
    made, first = parts(name)
    graph = opstage.record(made.loss, *first, *made.batch, train=True)
    batch = [type_ for type_ in map(str, graph.input_types) if type_.startswith("(B")]
    assert len(batch) == len(made.batch)
    args = (*first, *batches(name)[0])
    graph = opstage.record(made.loss, *args, train=True)
    eager = make_interpreter(Options())
    found = replay(eager, graph, [eager.put(leaf) for leaf in flatten(args)[0]])
    expected = flatten(opstage.run(made.loss, *args, train=True))[0]
    same_arrays(found, expected)


@pytest.mark.parametrize(("name", "dtype", "tolerance"), models(("float64", 1e-12)))
def test_models_compile_for_any_batch_size(name: str, dtype: Any, tolerance: float) -> None:
    made, first = parts(name)
    options = Options(dtype=dtype)
    compiled = opstage.compile(made.loss, *first, *made.batch, options=options, train=True)
    for rows in (ROWS, 2):
        args = (*first, *(array[:rows] for array in batches(name)[0]))
        expected = flatten(opstage.run(made.loss, *args, options=options, train=True))[0]
        close_arrays(flatten(compiled.forward(*args))[0], expected, rtol=tolerance, atol=tolerance)


def test_draws_are_the_same_bits_in_every_step(compilations: Callable[[], int]) -> None:
    def loss(ops: Any, p: Any, state: Any, x: Any) -> Any:
        u = ops.rand_uniform(shape=(3, 4))
        mask = ops.region("block", lambda ops: ops.bernoulli_mask(ops.const(0.5), shape=(5,)))
        return ops.sum(p * p) + 0.0 * ops.sum(x), Aux(state={"u": u, "mask": mask})

    state = {"u": np.zeros((3, 4)), "mask": np.zeros(5)}
    trainer = opstage.scalar_trainer(loss, np.ones(2), options=Options(backend="compiled", seed=11), state=state)
    for step in range(6):
        trainer.step(0.1, np.ones(1))
        u, mask = trainer.state["u"], trainer.state["mask"]
        np.testing.assert_array_equal(u.ravel(), uniform_bits(stream_key(11, step, draw_site((), 0)), 12))
        bits = uniform_bits(stream_key(11, step, draw_site((("block", 0),), 0)), 5)
        np.testing.assert_array_equal(mask, bits < 0.5)
    assert compilations() == 1


def test_an_anomaly_names_its_op_and_changes_nothing() -> None:
    def loss(ops: Any, p: Any, x: Any) -> Any:
        root = ops.sqrt(p * x)
        return ops.sum(root)

    trainer = opstage.scalar_trainer(loss, np.ones(2), options=Options(backend="compiled", detect_anomaly=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x, message in (
            ([1.0, -1.0], r"sqrt gave nan at index \(1,\)"),
            ([1.0, 0.0], "the backward pass of the op"),
        ):
            with pytest.raises(opstage.OpstageError, match=message) as caught:
                trainer.step(0.1, np.array(x))
            source = getattr(caught.value, "source", None)
            assert source is not None
            assert source.text.strip() == "root = ops.sqrt(p * x)"
            np.testing.assert_array_equal(trainer.get_params(), np.ones(2))


def test_exact_programs_are_replayed_in_fractions() -> None:
    def program(ops: Any, w: Any, x: Any) -> Any:
        h = x @ w
        return ops.sum(h * h) / 3

    options = Options(backend="compiled", dtype="exact")
    w = np.array([[Fraction(1, 3)], [Fraction(-2, 7)]], dtype=object)
    x = np.array([[Fraction(1, 2), Fraction(5)], [Fraction(0), Fraction(1, 7)]], dtype=object)
    h = x @ w
    value, gradient = opstage.value_and_grad(program, w, x, options=options)
    assert value == (h * h).sum() / 3
    assert (gradient == x.T @ h * Fraction(2, 3)).all()
    product = opstage.hvp(program, (w, x), (w, None), options=options)[0]
    assert (product == x.T @ (x @ w) * Fraction(2, 3)).all()
    trainer = opstage.scalar_trainer(program, w, options=options)
    trainer.step(Fraction(1, 2), x)
    assert (trainer.get_params() == w - gradient / 2).all()


def test_every_question_has_the_eager_answer() -> None:
    """run, value_and_grad, vjp, jvp and hvp, of a program with a scan, an index and a tree of outputs."""

    def program(ops: Any, params: Any, x: Any, labels: Any) -> Any:
        start = ops.full(shape=(4,), value=0.1)
        last, _ = ops.scan(lambda ops, h, row: (ops.tanh(h + row @ params["w"]), None), start, x)
        return ops.sum(last * ops.gather_vec(params["b"], labels))

    rng = np.random.default_rng(5)
    params = {"w": rng.normal(size=(3, 4)), "b": rng.normal(size=6)}
    args = params, rng.normal(size=(5, 3)), np.array([5, 0, 5, 2])
    moves = map_leaves(np.cos, params), np.ones((5, 3)), None

    def answers(options: Options) -> list[Any]:
        value, pullback = opstage.vjp(program, *args, options=options)
        return flatten(
            [
                opstage.run(program, *args, options=options),
                opstage.value_and_grad(program, *args, wrt=(0, 1), options=options),
                value,
                pullback(np.array(0.5)),
                opstage.jvp(program, args, moves, options=options),
                opstage.hvp(program, args, moves, options=options),
            ]
        )[0]

    options = Options(dtype="float64")
    close_arrays(answers(options), answers(options.replace(backend="compiled")), rtol=1e-12, atol=1e-14)


def test_a_module_trains_as_the_eager_one_does() -> None:
    def loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
        return ops.mse_loss(ops.linear(params["w"], params["b"], x), y)

    rng = np.random.default_rng(2)
    first = {"w": rng.normal(size=(1, 3)), "b": np.zeros(1)}
    samples = [(rng.normal(size=(4, 3)), rng.normal(size=(4, 1))) for _ in range(3)]
    found = []
    for backend in ("eager", "compiled"):
        made = opstage.ScalarModuleDef(first, loss).instantiate(Options(dtype="float64", backend=backend))
        optimizer = opstage.optim.adam(lr=schedule.cosine(0.1, 9))
        made.train_with(optimizer, made.init_optim(optimizer), 9, samples)
        found.append([*flatten(made.params())[0], made.mean_loss(samples)])
    close_arrays(*found, rtol=1e-12)


# How often ------------------------------------------------------------------------------------------------------------


def test_a_schedule_compiles_once_and_a_new_batch_size_once_more(compilations: Callable[[], int]) -> None:
    trainer = opstage.scalar_trainer(
        regression, start(), Spec("B 3"), Spec("B 1"), options=Options(backend="compiled", validate=True)
    )
    optimizer = opstage.optim.adamw(lr=schedule.warmup_cosine(0.01, 5, 50))
    state = trainer.init_optim(optimizer)
    for _ in range(50):
        state = trainer.step_with(optimizer, state, *sample(16))
    assert compilations() == 1
    for rows in (7, 16, 7):
        state = trainer.step_with(optimizer, state, *sample(rows))
    assert compilations() == 2
    other = opstage.optim.adamw(lr=0.5)  # a rate is not a part of the program
    state = trainer.step_with(other, state, *sample(16))
    assert compilations() == 2
    trainer.step(0.1, *sample(16))  # another optimizer
    trainer.forward(*sample(16))
    assert compilations() == 4


def resident() -> int:
    """Bytes of memory that this process has now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc")
@alone
def test_two_thousand_steps_take_constant_memory() -> None:
    trainer = opstage.scalar_trainer(regression, start(64), options=Options(backend="compiled"))
    batch = sample(64)

    def train(steps: int) -> None:
        for _ in range(steps):
            trainer.adam_step(1e-3, 0.9, 0.999, 1e-8, *batch)

    train(100)
    gc.collect()
    tracemalloc.start()
    try:
        train(50)
        before, held = tracemalloc.get_traced_memory()[0], resident()
        train(2000)
        gc.collect()
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert after - before < 20_000
    assert resident() - held < 8 << 20  # a step's intermediate results alone are 100 kB
