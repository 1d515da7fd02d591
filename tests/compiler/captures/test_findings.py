"""A check lists the state of Python's that a program reads, with its line; what cannot change is not a finding."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.special

import opstage
from opstage import Spec
from opstage.models import MODELS, model
from tests.processes import COMMAND, python

SCALES = [1.0, 2.0]
CONFIG = {"tau": [1.0]}
TABLE = np.ones(3, np.float32)
FROZEN_TABLE = np.ones(3, np.float32)
FROZEN_TABLE.flags.writeable = False
TAU = 0.5
WIDTHS = (1.0, 2.0)


@dataclasses.dataclass(frozen=True)
class Fixed:
    tau: float = 1.0


@dataclasses.dataclass
class Loose:
    tau: float = 1.0


FIXED, LOOSE = Fixed(), Loose()


class Model:
    def __init__(self) -> None:
        self.tau = 1.0
        self.fixed = FIXED

    def loss(self, ops: Any, x: Any) -> Any:
        return self.scaled(x)

    def scaled(self, x: Any) -> Any:
        return x * self.tau


CHANGEABLE: dict[str, tuple[Callable[..., Any], str]] = {
    "list": (lambda ops, x: x * SCALES[0], "SCALES"),
    "dict": (lambda ops, x: x * CONFIG["tau"][0], "CONFIG"),
    "array": (lambda ops, x: x + ops.const(TABLE), "TABLE"),
    "attribute": (lambda ops, x: x * LOOSE.tau, "LOOSE.tau"),
    "self": (Model().loss, "self.tau"),
    "helper": (lambda ops, x: (lambda: x * SCALES[0])(), "SCALES"),
}

FIXED_ONES: dict[str, Callable[..., Any]] = {
    "number": lambda ops, x: x * TAU,
    "tuple": lambda ops, x: x * WIDTHS[0],
    "frozen dataclass": lambda ops, x: x * FIXED.tau,
    "read-only array": lambda ops, x: x + ops.const(FROZEN_TABLE),
    "library": lambda ops, x: x * math.pi + float(np.float32(1)),
    "own list": lambda ops, x: x * [1.0, 2.0][0],
}


@pytest.mark.parametrize("case", CHANGEABLE)
def test_changeable_state_is_found(case: str) -> None:
    program, name = CHANGEABLE[case]
    report = opstage.check(program, Spec("3"))
    assert report.ok
    assert not report.warnings
    (finding,) = report.notes
    assert (finding.rule, finding.op, finding.severity) == ("captured-state", name, "note")
    assert finding.source is not None and Path(finding.source.file).name == Path(__file__).name
    step = opstage.check_step(lambda ops, p, x: ops.sum(program(ops, p * x)), Spec("3"), Spec("3"))
    assert [f.op for f in step.notes] == [name]


@pytest.mark.parametrize("case", FIXED_ONES)
def test_what_cannot_change_is_none(case: str) -> None:
    assert not opstage.check(FIXED_ONES[case], Spec("3")).notes


class Held:
    """An object that is read as a whole."""

    def __init__(self, array: Any) -> None:
        self.array = array


class Shows:
    """What shows its memory as an array."""

    def __init__(self) -> None:
        self.memory = np.ones(1 << 17)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.memory


LARGE = {
    "one in an object": lambda: Held(np.ones(1 << 22)),
    "many in a list": lambda: [np.ones(1 << 17) for _ in range(32)],
    "a view of one": lambda: Held(np.ones((1 << 11, 1 << 11)).T),
    "bytes": lambda: [bytearray(1 << 20) for _ in range(32)],
    "in a dict of objects": lambda: {i: Held(np.ones(1 << 20)) for i in range(4)},
    "shown by objects": lambda: [Shows() for _ in range(32)],
}


@pytest.mark.parametrize(
    "call",
    [
        *(lambda: np.sqrt(2.0), lambda: np.add(1.0, 2.0), lambda: np.add.reduce([1.0, 2.0]), lambda: math.sqrt(2.0)),
        *(lambda: np.linspace(0.0, 1.0, 3)[1], lambda: np.finfo(np.float32).eps, lambda: np.float32(1e-6)),
        *(lambda: scipy.special.erf(0.5), lambda: np.frompyfunc(abs, 1, 1)(2.0), lambda: np.vectorize(abs)(2.0)),
        *(lambda: operator.mul(2.0, 3.0), lambda: functools.reduce(operator.add, (1.0, 2.0)), lambda: np.pi),
    ],
)
def test_functions_of_libraries_are_no_state(call: Any) -> None:
    assert not opstage.check(lambda ops, x: ops.mul(x, float(call())), Spec("3")).notes


@pytest.mark.parametrize("case", LARGE)
def test_a_list_of_what_is_read_copies_no_array(case: str) -> None:
    held = LARGE[case]()

    def program(ops: Any, x: Any) -> Any:
        return x * float(bool(held))

    tracemalloc.start()
    try:
        report = opstage.check(program, Spec("3"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert report.ok and [finding.op for finding in report.notes] == ["held"]
    assert peak < 4 << 20


@pytest.mark.parametrize("name", MODELS)
def test_the_shipped_models_have_none(name: str) -> None:
    made = model(name)
    report = opstage.check_step(made.loss, made.init, *made.batch, state=made.state)
    assert not [finding for finding in report.notes if finding.rule == "captured-state"]


def test_a_trainer_is_silent_about_it(recwarn: pytest.WarningsRecorder) -> None:
    opstage.scalar_trainer(lambda ops, p, x: ops.sum(p * x * SCALES[0]), TABLE, Spec("3")).step(0.1, TABLE)
    assert not recwarn.list


def test_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("SCALES = [1.0]\ndef loss(ops, x):\n    return ops.sum(x * SCALES[0])\n")
    done = python(*COMMAND, "check", f"{path}:loss", "--input", "x: B 3")
    assert done.returncode == 0, done.stderr
    assert "note[captured-state]" in done.stdout and "SCALES" in done.stdout and "mine.py:3" in done.stdout
