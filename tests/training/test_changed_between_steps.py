"""Whatever changes between two steps, a compiled trainer takes the next one as an eager one does, on a mesh too.

What a step keeps from the last one, as the arrays of parameters and moments, may be exchanged by anybody in between.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, optim
from opstage.ops.errors import UsageError
from opstage.ops.trees import flatten
from opstage.optim.optimizer import Optimizer
from opstage.training.state import RunningAverage
from tests.distributed.threads import on_processes
from tests.graph.regression import regression, start

ADAMW = optim.adamw(lr=0.01, weight_decay=0.1)


def batch(rows: int = 8, seed: int = 0) -> tuple[Any, ...]:
    x = np.random.default_rng(seed).normal(size=(rows, 3))
    return x, np.sin(x.sum(1, keepdims=True))


class Run:
    """A trainer between two steps, with what its next step takes."""

    def __init__(self, options: Options):
        self.trainer = opstage.scalar_trainer(regression, start(), options=options)
        self.optimizer: Optimizer = ADAMW
        self.state = self.trainer.init_optim(ADAMW)
        self.batch = batch()
        self.losses: list[Any] = []
        self.kept: list[Any] = []  # what was seen, and a copy of it as it was then

    def step(self) -> None:
        self.losses.append(np.array(self.trainer.advance(self.optimizer, self.state, *self.batch).loss))

    def see(self, *arrays: Any) -> None:
        self.kept += [(array, np.array(array)) for array in arrays]


def replaced(run: Run, **what: Any) -> None:
    """Give the next steps another batch, optimizer or state."""
    vars(run).update(what)


def rows(change: Callable[[Any, Any], tuple[Any, ...]], size: int = 8, seed: int = 0) -> Callable[[Run], None]:
    """Another batch in the place of that before."""
    return lambda run: replaced(run, batch=change(*batch(size, seed)))


def rate(lr: Any, decay: float = 0.1) -> Callable[[Run], None]:
    return lambda run: replaced(run, optimizer=optim.adamw(lr=lr, weight_decay=decay))


def restored(run: Run) -> None:
    saved = run.trainer.export()
    run.step()
    run.trainer.restore(saved)


def frozen(run: Run) -> None:
    run.trainer.params["b1"].requires_grad = False
    replaced(run, state=run.trainer.init_optim(ADAMW))


def read_only(run: Run) -> None:
    for array in run.batch:
        array.flags.writeable = False


def overwritten(run: Run) -> None:
    run.batch[0][:] = 0.5


def other_optimizer(run: Run) -> None:
    other = optim.rmsprop(lr=0.1)
    replaced(run, optimizer=other, state=run.trainer.init_optim(other))


def copied_state(run: Run) -> None:
    run.see(*[slot for each in run.state.slots for slot in each])
    run.state = copy.deepcopy(run.state)


def state_gone_back(run: Run) -> None:
    before = copy.deepcopy(run.state)
    run.step()
    run.state = before


def state_left_alone(run: Run) -> None:
    following = run.trainer.train_step(ADAMW, run.state, *run.batch).state
    run.see(*[slot for each in run.state.slots for slot in each])
    run.state = following


def evaluated(run: Run) -> None:
    run.losses += [np.array(run.trainer.forward(*run.batch, train=train)) for train in (False, True)]


def named_steps(run: Run) -> None:
    run.losses.append(np.array(run.trainer.adam_step(0.01, 0.9, 0.999, 1e-8, *run.batch)))
    run.losses.append(np.array(run.trainer.step(0.01, *run.batch)))


def averaged(run: Run) -> None:
    """An average that moves, written over itself, while the parameters do."""
    average = RunningAverage()
    for _ in range(3):
        run.trainer.average(average, 0.5)
        run.step()
    run.losses += [np.array(value) for _, value in sorted(run.trainer.export_average(average).items())]


def predicted(run: Run) -> None:
    """A program that is prepared for its calls, asked before and after steps."""
    x = run.batch[0]

    def program(ops: Any, params: Any, x: Any) -> Any:
        return ops.linear(params["w1"], params["b1"], x)

    prepared = run.trainer.prepare(program, x)
    for _ in range(3):
        found = None if prepared is None else run.trainer.evaluate_prepared(prepared, x)
        run.losses.append(np.array(run.trainer.evaluate(program, x) if found is None else found))
        run.step()


def refused(run: Run) -> None:
    for wrong in (batch()[:1], (batch()[0][:, :2], batch()[1])):
        with pytest.raises(opstage.OpstageError):
            run.trainer.advance(ADAMW, run.state, *wrong)
    with pytest.raises(UsageError):
        run.trainer.advance(optim.sgd(), run.state, *batch())


def shared(run: Run) -> None:
    """Another trainer of the same parameters takes a step, on an interpreter of its own."""
    opstage.scalar_trainer(regression, run.trainer.params, options=run.trainer.options).step(0.1, *run.batch)


CHANGES: dict[str, Callable[[Run], Any]] = {
    "a parameter replaced": lambda run: run.trainer.params["w1"].set(np.full((8, 3), 0.25)),
    "parameters seen": lambda run: run.see(*[param.value for param in flatten(run.trainer.params)[0]]),
    "all parameters replaced": lambda run: run.trainer.set_params(start(8) | {"b1": np.ones(8)}),
    "restored": restored,
    "frozen": frozen,
    "other rows": rows(lambda x, y: (x, y), 4, seed=3),
    "no more than a view": rows(lambda x, y: (x[::2], y[::-2]), 16, seed=4),
    "transposed": rows(lambda x, y: (np.asfortranarray(x), y), seed=5),
    "another dtype": rows(lambda x, y: (x.astype(np.float32), y.astype(np.float32))),
    "another order of bytes": rows(lambda x, y: (x.astype(">f8"), y), seed=6),
    "read only": read_only,
    "overwritten": overwritten,
    "in its place": lambda run: replaced(run, batch=(run.batch[0], run.batch[1][:, :1].copy())),
    "another rate": rate(0.5),
    "a rate of another type": rate(np.float32(0.125)),
    "a rate as a fraction": rate(Fraction(1, 4)),
    "scheduled": rate(optim.schedule.cosine(0.3, 20)),
    "another decay": rate(0.01, decay=0.9),
    "another optimizer": other_optimizer,
    "a new state": lambda run: replaced(run, state=run.trainer.init_optim(ADAMW)),
    "a copied state": copied_state,
    "a state gone back": state_gone_back,
    "a state left alone": state_left_alone,
    "evaluated": evaluated,
    "differentiated": lambda run: run.see(*flatten(run.trainer.loss_and_backward(*run.batch)[1])[0]),
    "named steps": named_steps,
    "averaged": averaged,
    "predicted": predicted,
    "as lists": lambda run: replaced(run, batch=(run.batch[0].tolist(), run.batch[1])),
    "by name": lambda run: replaced(run, batch=({"y": run.batch[1], "x": run.batch[0]},)),
    "refused": refused,
    "trimmed": lambda run: run.trainer.empty_cache(),
    "shared": shared,
}


def found(change: Callable[[Run], None], options: Options) -> list[np.ndarray[Any, Any]]:
    """Losses, parameters and moments of three steps, a change, and three more."""
    run = Run(options)
    for _ in range(3):
        run.step()
    change(run)
    for _ in range(3):
        run.step()
    for array, before in run.kept:
        np.testing.assert_array_equal(array, before)
    return [*run.losses, *flatten(run.trainer.get_params())[0], *flatten(run.state.slots)[0]]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("place", ["alone", "ranks", "processes"])
def test_a_compiled_step_is_that_of_the_eager_interpreter(change: Callable[[Run], None], place: str) -> None:
    eager = found(change, Options(dtype="float64"))
    compiled = Options(backend="compiled", dtype="float64", mesh="" if place == "alone" else "data=2")
    every = on_processes(2, lambda _: found(change, compiled)) if place == "processes" else [found(change, compiled)]
    for each in every:
        for x, y in zip(each, eager, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12)


def test_steps_of_one_trainer_in_threads_are_all_taken() -> None:
    run, alone = (Run(Options(backend="compiled", dtype="float64")) for _ in range(2))

    def several() -> None:
        for _ in range(5):
            run.trainer.adam_step(0.01, 0.9, 0.999, 1e-8, *run.batch)

    threads = [threading.Thread(target=several) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _ in range(20):
        alone.trainer.adam_step(0.01, 0.9, 0.999, 1e-8, *alone.batch)
    assert run.trainer.steps_taken == 20
    for x, y in zip(*[flatten(each.trainer.get_params())[0] for each in (run, alone)], strict=True):
        np.testing.assert_array_equal(x, y)
