"""Whatever is raised between any two bytecodes of a change, by whomever, all of it has happened or nothing."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Aux, Options, Session, optim
from opstage.ops.derived import dropout
from opstage.ops.trees import flatten
from opstage.training.commit import Commit
from tests.searches import share
from tests.training.raising import RaiseAt, Torn, bytecodes, moments

BACKENDS = ["eager", "compiled"]
COMMITTING = (
    "training",
    "transforms/base_program",
    "interpreters/graph/program_cache",
    "interpreters/graph/executor",
    "compiler/codegen",
    "compiler/codegen/cpu",
    "interpreters/graph/cpu",
    "compiler/native",
)
X = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
Y = np.sin(X.sum(1, keepdims=True))


def loss(ops: Any, params: Any, state: Any, x: Any, y: Any, *, train: bool = False) -> Any:
    h = ops.tanh(ops.linear(params["w1"], params["b1"], x))
    seen = ops.add(ops.scale(state["seen"], c=0.9), ops.detach(ops.reduce_mean(h, axis=0)))
    out = ops.linear(params["w2"], None, dropout(ops, h, p=0.25, train=train))
    return ops.mse_loss(out, y), Aux(
        state={"seen": seen, "first": state["seen"]}, metrics={"m": ops.sum(ops.add(seen, state["first"]))}
    )


def start() -> Any:
    rng = np.random.default_rng(1)
    return {"w1": rng.normal(size=(8, 3)), "b1": np.zeros(8), "w2": rng.normal(size=(1, 8))}


def first_state() -> Any:
    return {"seen": np.zeros(8), "first": np.zeros(8)}


class Subject:
    """A trainer with all that a step changes."""

    def __init__(self, backend: str, optimizer: optim.Optimizer):
        self.optimizer = optimizer
        self.trainer = opstage.scalar_trainer(loss, start(), state=first_state(), options=Options(backend=backend))
        self.state = self.trainer.init_optim(optimizer)
        self.trainer.adam_step(0.1, 0.9, 0.999, 1e-8, X, Y)
        self.saved = self.trainer.export()

    def advance(self) -> None:
        self.trainer.advance(self.optimizer, self.state, X, Y)

    def train_step(self) -> None:  # the next state is the caller's
        self.trainer.train_step(self.optimizer, self.state, X, Y)

    def adamw_step(self) -> None:
        self.trainer.adamw_step(0.1, 0.9, 0.999, 1e-8, 0.01, X, Y)

    def set_params(self) -> None:
        self.trainer.set_params({name: value + 1 for name, value in start().items()})

    def set_state(self) -> None:
        self.trainer.set_state({"seen": np.ones(8), "first": np.ones(8)})

    def restore(self) -> None:
        self.trainer.restore(self.saved)

    def everything(self) -> list[Any]:
        saved, held = self.trainer.export(), self.trainer.export_optim(self.optimizer, self.state)
        own = [(name, m.t, m.slots) for name, m in sorted(saved.moments.items())]
        return [np.array(x) for x in flatten((dict(saved.params), dict(saved.state), own, dict(held.slots)))[0]] + [
            np.array([saved.steps_taken, held.t])
        ]


def same(x: list[Any], y: list[Any]) -> bool:
    return len(x) == len(y) and all(np.array_equal(a, b) for a, b in zip(x, y))


OPTIMIZERS = {"sgd": optim.sgd(lr=0.1), "adam": optim.adam(lr=0.1)}
CHANGES = {
    **{f"advance-{name}": (Subject.advance, name) for name in OPTIMIZERS},
    "train_step": (Subject.train_step, "adam"),
    "adamw_step": (Subject.adamw_step, "sgd"),
    "set_params": (Subject.set_params, "sgd"),
    "set_state": (Subject.set_state, "sgd"),
    "restore": (Subject.restore, "sgd"),
}


def check_every(subject: Subject, change: Callable[[], None], *, around: int, spread: int) -> None:
    begin, held = subject.trainer.export(), subject.trainer.export_optim(subject.optimizer, subject.state)
    before = subject.everything()

    def back() -> None:
        subject.trainer.restore(begin)
        subject.state = subject.trainer.import_optim(subject.optimizer, held)

    change()
    after = subject.everything()
    back()
    assert same(subject.everything(), before) and not same(before, after)
    count = bytecodes(change, COMMITTING)
    count += count // 20  # after one that was cut short a change takes more, to make caches and memory anew

    def ends(n: int) -> bool:
        back()
        with suppress(Torn), RaiseAt(n, COMMITTING):
            change()
        now = subject.everything()
        changed = same(now, after)
        assert changed or same(now, before), f"torn by an exception before bytecode {n} of {count}"
        return changed

    found = set()
    for n in moments(count, ends, around=around, spread=spread):
        found.add(ends(n))
        back()
        change()  # the next one is a whole one
        assert same(subject.everything(), after), f"an exception before bytecode {n} of {count} is felt later"
    assert found == {False, True}


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Whatever is raised and whenever, signals are heard afterwards by whom they were heard before."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    yield
    after = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    for number, handler in zip((signal.SIGINT, signal.SIGTERM), before):
        signal.signal(number, handler)
    assert after == before


MANY = pytest.param(share(1500), share(500), marks=[pytest.mark.slow, pytest.mark.soak], id="many bytecodes")
"""At a quarter of those that soak goes through, the ones before and after the change first of all."""


@pytest.mark.parametrize(("around", "spread"), [pytest.param(30, 10, id="some bytecodes"), MANY])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_happens_whole_or_not_at_all(name: str, backend: str, around: int, spread: int) -> None:
    change, optimizer = CHANGES[name]
    subject = Subject(backend, OPTIMIZERS[optimizer])
    subject.advance()
    check_every(subject, lambda: change(subject), around=around, spread=spread)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_session_steps_whole_or_not_at_all(backend: str) -> None:
    first = np.arange(1.0, 4.0)

    def made() -> tuple[Session, list[Any]]:
        session = Session(Options(backend=backend, dtype="float64"))
        params = [session.param(first), session.param(2 * first)]
        p, q = map(session.use, params)
        session.backward(session.sum(session.mul(session.mul(p, p), q)))
        return session, params

    def values(params: list[Any]) -> list[Any]:
        return [param.value.copy() for param in params]

    session, params = made()
    before = values(params)
    count = bytecodes(lambda: session.adam_step_all(0.1), COMMITTING)
    after = values(params)
    session.adam_step_all(0.1)
    twice = values(params)

    def ends(n: int) -> bool:
        session, params = made()
        with suppress(Torn), RaiseAt(n, COMMITTING):
            session.adam_step_all(0.1)
        changed = same(values(params), after)
        assert changed or same(values(params), before)
        assert len({param.version for param in params}) == 1
        if not changed:
            session.adam_step_all(0.1)
        session.adam_step_all(0.1)  # whose moments are those of the second step
        assert same(values(params), twice)
        return changed

    assert {ends(n) for n in moments(count, ends, around=15, spread=6)} == {False, True}


def test_handlers_of_any_signal_tear_no_step() -> None:
    """A timer's signals, whose handler raises, come where they come."""
    subject = Subject("eager", OPTIMIZERS["adam"])
    reference = Subject("eager", OPTIMIZERS["adam"])
    histories = {}
    for step in range(1, 42):
        histories[step] = reference.everything()
        reference.advance()

    def raising(number: int, frame: Any) -> None:
        raise Torn

    before = signal.signal(signal.SIGALRM, raising)
    torn = 0
    try:
        while (done := subject.trainer.steps_taken) < 41:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0003 + 0.00005 * (torn % 40))
                subject.advance()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Torn:
                torn += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            now = subject.trainer.steps_taken
            assert now in (done, done + 1)
            assert same(subject.everything(), histories[now])
            if torn >= 200:
                break
    except Torn:  # one that came after the step
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_commit_can_be_taken_back_and_sets_frozen_holders() -> None:
    class Holder:
        __slots__ = ("x",)

        def __init__(self, x: int):
            self.x = x

        def __setattr__(self, name: str, value: Any) -> None:
            if hasattr(self, "x"):
                raise AttributeError("frozen")
            object.__setattr__(self, name, value)

    one, two = Holder(1), Holder(2)
    commit = Commit()
    commit.set(one, "x", 10)
    commit.set(two, "x", 20)
    assert (one.x, two.x) == (1, 2)
    commit.run()
    assert (one.x, two.x) == (10, 20)
    commit.undo()
    assert (one.x, two.x) == (1, 2)
