"""What nobody uses any more is freed at once, without the garbage collector: it counts objects, not their bytes."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, optim
from opstage.init import build
from opstage.models import model
from opstage.ops.errors import RangeError
from tests.graph.counting_allocator import Counted
from tests.memory.measured import batch_of, forget_workspace

BACKENDS = ["eager", "compiled"]
FEW = 20_000
"""Bytes: scalars, and what is made once."""


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def sizes_of(name: str) -> dict[str, int]:
    return {"B": 16, "T": 8} if name == "gpt" else {"B": 16}


def trainer_of(name: str, options: Options, *, specs: bool = True) -> opstage.ScalarTrainer:
    made = model(name)
    state = None if made.state is None else build(made.state, dtype="float32", seed=0)
    params = build(made.init, dtype="float32", seed=0)
    return opstage.scalar_trainer(made.loss, params, *(made.batch if specs else ()), options=options, state=state)


def use(trainer: opstage.ScalarTrainer, batch: list[Any]) -> None:
    """Everything that a trainer does with a batch."""
    optimizer = optim.adamw(lr=1e-3)
    state = trainer.init_optim(optimizer)
    trainer.advance(optimizer, state, *batch)
    trainer.train_step(optimizer, state, *batch)
    trainer.adam_step(1e-3, 0.9, 0.99, 1e-8, *batch)
    trainer.forward(*batch)
    trainer.loss_and_backward(*batch)
    trainer.get_params()
    trainer.export()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "name", ["mlp", *[pytest.param(name, marks=pytest.mark.slow) for name in ("lstm", "pinn", "gpt")]]
)
@pytest.mark.parametrize("specs", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["specs", "any batch"])
def test_a_trainer_that_is_dropped_is_freed(name: str, backend: str, specs: bool) -> None:
    options, batch = Options(backend=backend), batch_of(model(name), sizes_of(name))
    use(trainer_of(name, options, specs=specs), batch)  # makes what is made once in a process
    forget_workspace()
    with Counted() as count:
        trainer = trainer_of(name, options, specs=specs)
        use(trainer, batch)
        held = count.live
        del trainer
        forget_workspace()
        assert count.live <= FEW < held


@pytest.mark.parametrize("options", [Options(detect_anomaly=True), Options(dtype="float64", fast_kernels=False)])
def test_so_is_one_with_other_options(options: Options) -> None:
    batch = batch_of(model("mlp"), sizes_of("mlp"))
    with Counted() as count:
        trainer = trainer_of("mlp", options)
        use(trainer, batch)
        del trainer
        forget_workspace()
        assert count.live <= FEW


@pytest.mark.parametrize("backend", BACKENDS)
def test_steps_leave_nothing_behind(backend: str) -> None:
    trainer, batch = trainer_of("mlp", Options(backend=backend)), batch_of(model("mlp"), sizes_of("mlp"))
    use(trainer, batch)
    with Counted() as count:
        use(trainer, batch)
        before = count.live
        for _ in range(2):
            use(trainer, batch)
        assert count.live <= before + FEW


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_that_raises_leaves_nothing_behind(backend: str) -> None:
    x, y = batch_of(model("mlp"), sizes_of("mlp"))
    trainer = trainer_of("mlp", Options(backend=backend), specs=False)  # whose ranges would stop the batch before it
    unknown = y + 100
    trainer.step(0.1, x, y)
    with Counted() as count:
        trainer.step(0.1, x, y)
        before = count.live
        for _ in range(5):
            with pytest.raises(RangeError):
                trainer.step(0.1, x, unknown)
        gc.collect()  # an error and the frames of its traceback may hold each other
        assert count.live <= before + FEW


def curved(ops: Any, x: Any, w: Any) -> Any:
    """A loop, an inner derivative, and ops of both kinds."""
    total, _ = ops.scan(lambda ops, c, row: (ops.tanh(ops.add(c, row)), None), ops.reduce_sum(x, axis=(0,)), x)
    inner = opstage.transform.grad(ops, lambda ops, z: ops.sum(ops.sin(z)), w)
    return ops.sum(0.1 * ops.matmul(ops.exp(x), w)) + ops.sum(total) + ops.sum(inner)


QUESTIONS: dict[str, Callable[[tuple[Any, ...], Options], Any]] = {
    "run": lambda args, options: opstage.run(curved, *args, options=options),
    "value_and_grad": lambda args, options: opstage.value_and_grad(curved, *args, wrt=(0, 1), options=options),
    "vjp": lambda args, options: opstage.vjp(curved, *args, options=options)[1](np.float32(1)),
    "jvp": lambda args, options: opstage.jvp(curved, args, args, options=options),
    "hvp": lambda args, options: opstage.hvp(curved, args, args, options=options),
    "check": lambda args, options: opstage.check(curved, *args, options=options),
    "compile": lambda args, options: opstage.compile(curved, *args, options=options).backward(*args),
    "record": lambda args, options: opstage.record(curved, *args, options=options),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("question", QUESTIONS)
def test_questions_about_a_program_leave_nothing_behind(question: str, backend: str) -> None:
    rng = np.random.default_rng(0)
    args = rng.normal(size=(64, 100)).astype(np.float32), rng.normal(size=(100, 100)).astype(np.float32)
    ask, options = QUESTIONS[question], Options(backend=backend)
    ask(args, options)
    with Counted() as count:
        ask(args, options)
        before = count.live  # of an interpreter that is shared, its arena
        for _ in range(4):
            ask(args, options)
        forget_workspace()
        assert count.live <= before + FEW
        if backend == "eager":
            assert count.live <= FEW


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_tape_that_is_reset_and_a_session_that_is_dropped_are_freed(backend: str) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(64, 100)).astype(np.float32), rng.normal(size=(100, 100)).astype(np.float32)

    def step(session: opstage.Session, param: Any) -> None:
        weight, rows = session.use(param), session.input(x)
        loss = session.sum(session.tanh(session.matmul(rows, weight)))
        session.get_value(loss)
        session.backward(loss)
        session.grad(param)
        session.adam_step_all(1e-3)
        session.reset_tape()

    with Counted() as count:
        session = opstage.Session(Options(backend=backend))
        param = session.param(w)
        for _ in range(3):
            step(session, param)
        before = count.live
        for _ in range(5):
            step(session, param)
        assert count.live <= before + FEW
        del session, param
        forget_workspace()
        assert count.live <= FEW
