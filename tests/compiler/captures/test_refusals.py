"""Programs that no recording can be right about are refused, in words; those that are right cost no recording."""

from __future__ import annotations

import datetime
import logging
import os
import random
import secrets
import sys
import time
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, ProgramError, ProgramWarning, Spec

COMPILED = Options(backend="compiled")
X = np.arange(1, 4, dtype=np.float32)
GENERATOR = np.random.default_rng(0)
LARGE = np.ones(2**20, np.float32)


class Counting:
    def __init__(self) -> None:
        self.count = 0
        self.log: list[int] = []
        self.rng = random.Random(0)

    def counted(self, ops: Any, x: Any) -> Any:
        self.count += 1
        return x * 2.0

    def scaled(self, ops: Any, x: Any) -> Any:
        self.count += 1
        return x * float(self.count)

    def logged(self, ops: Any, x: Any) -> Any:
        self.log.append(len(x.shape))
        return x * 2.0

    def drawn(self, ops: Any, x: Any) -> Any:
        return x * self.rng.uniform(0, 1)


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "np.random": (lambda ops, x: x * np.random.rand(), "draws random numbers from np.random"),
    "np.random in a branch": (
        lambda ops, x: x if np.random.rand() < 0.5 else -x,
        "draws random numbers from np.random",
    ),
    "np.random as an array": (lambda ops, x: x + ops.const(np.random.normal(size=3)), "draws random numbers"),
    "a draw that is not used": (lambda ops, x: (np.random.rand(), x)[1], "draws random numbers"),
    "generator": (lambda ops, x: x * GENERATOR.normal(), "draws random numbers from GENERATOR"),
    "random": (lambda ops, x: x * random.random(), "draws random numbers from random"),
    "random.gauss": (lambda ops, x: x * random.gauss(0, 1), "draws random numbers"),
    "random.shuffle": (lambda ops, x: (random.shuffle([1, 2]), x)[1], "draws random numbers"),
    "generator of self": (Counting().drawn, "draws random numbers from self.rng"),
    "clock": (lambda ops, x: x * time.time(), "It calls time.time at"),
    "clock, in a library": (lambda ops, x: x * datetime.datetime.now().timestamp(), "It calls datetime.now at"),
    "system's random numbers": (lambda ops, x: x * secrets.randbits(40), "two recordings of the program differ"),
    "uuid": (lambda ops, x: x * (uuid.uuid4().int % 2**40), "two recordings of the program differ"),
    "static argument": (lambda ops, x: ops.scale(x, c=time.perf_counter()), "c of scale at"),
    "counter": (Counting().counted, "changes self.count"),
    "counter that is used": (Counting().scaled, "two recordings of the program differ"),
    "large array": (lambda ops, x: ops.sum(ops.const(LARGE)) * x, "LARGE at .*holds 4.0 MiB"),
    "large array in a list": (
        (lambda tables: lambda ops, x: ops.sum(ops.const(tables[0])) * x)([LARGE]),
        r"tables\[0\] at .*read-only: `array.flags.writeable = False`",
    ),
    "very long list": (
        (lambda numbers: lambda ops, x: x * numbers[0])([1.0] * 200_000),
        "numbers at .*holds more than 100,000 values",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    program, message = REFUSED[case]
    opstage.run(program, X)  # eagerly all is well
    with pytest.raises(ProgramError, match=message) as error:
        opstage.run(program, X, options=COMPILED)
    assert "argument" in str(error.value) and Path(__file__).name in str(error.value) or "random" in message
    with pytest.raises(ProgramError):
        opstage.compile(program, Spec("3"))


def test_each_draw_counts_even_where_recordings_agree() -> None:
    draws = iter([0.1, 0.2, 0.3, 0.4] * 10)

    class Agreeing(random.Random):
        def random(self) -> float:
            super().random()
            return next(draws)

    rng = Agreeing(0)
    with pytest.raises(ProgramError, match="draws random numbers from rng"):
        opstage.run(lambda ops, x: x if rng.random() < 0.5 else -x, X, options=COMPILED)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda path: open(path).close(), "io.open"),
        (lambda path: path.read_text(), "open"),
        (lambda path: np.loadtxt(path), "open"),
        (lambda path: time.strftime("%Y"), "time.strftime"),
        (lambda path: datetime.date.today(), "date.today"),
        (lambda path: __import__("math").pi, "builtins.__import__"),
    ],
)
def test_what_is_asked_of_the_world_is_said(tmp_path: Path, call: Callable[[Path], Any], name: str) -> None:
    path = tmp_path / "number.txt"
    path.write_text("3.0")

    def program(ops: Any, x: Any) -> Any:
        call(path)
        return x * 2.0

    with pytest.warns(ProgramWarning, match=rf"calls \S*{name} at .*; a compiled program keeps"):
        opstage.run(program, X, options=COMPILED)


def test_read_only_arrays_may_be_large() -> None:
    table = np.ones(2**20, np.float32)
    table.flags.writeable = False
    np.testing.assert_array_equal(
        opstage.run(lambda ops, x: ops.sum(ops.const(table)) * x, X, options=COMPILED), X * 2**20
    )


def test_a_read_only_view_of_what_can_be_changed_is_not_taken_for_constant() -> None:
    table = np.ones(3, np.float32)
    view = table[:]
    view.flags.writeable = False
    for k in (1.0, 2.0):
        table[:] = k
        np.testing.assert_array_equal(opstage.run(lambda ops, x: x * ops.const(view), X, options=COMPILED), X * k)


def _recordings(caplog: pytest.LogCaptureFixture) -> int:
    return sum("compiling" in r.message for r in caplog.records)


@pytest.fixture
def recordings(caplog: pytest.LogCaptureFixture) -> Callable[[], int]:
    caplog.set_level(logging.DEBUG, "opstage.interpreters.graph.program_cache")
    return lambda: _recordings(caplog)


def test_nothing_is_recorded_anew_without_a_reason(recordings: Callable[[], int]) -> None:
    model, values, names = Counting(), [0.5, 1.5], {"a": 2.0}

    def program(ops: Any, x: Any) -> Any:
        return model.logged(ops, x) * values[0] * names["a"] * os.environ.get("OPSTAGE_TEST_K", 1.0)

    for _ in range(3):
        opstage.run(program, X, options=COMPILED)
        values[0] = float("0.5")  # another object of the same value
        names = dict(names)
        names.update(a=float("2.0"))
        os.environ["OPSTAGE_TEST_OTHER"] = str(time.time())
    del os.environ["OPSTAGE_TEST_OTHER"]
    assert recordings() == 1 + 2  # `names` is another dict each time; what is compiled is the same


def test_what_is_written_and_not_read_changes_nothing(recordings: Callable[[], int]) -> None:
    model = Counting()
    for _ in range(3):
        opstage.run(model.logged, X, options=COMPILED)
        model.count += 1  # not read by this program
        model.log.append(1)
    assert recordings() == 1


def test_a_flag_that_goes_to_and_fro_is_compiled_once_for_each(recordings: Callable[[], int]) -> None:
    state = {"train": True}

    def program(ops: Any, x: Any) -> Any:
        return x * 2.0 if state["train"] else x

    for train in (True, False) * 4:
        state["train"] = train
        np.testing.assert_array_equal(opstage.run(program, X, options=COMPILED), X * (2 if train else 1))
    assert recordings() == 2


def test_repeated_recording_warns_once_at_the_line_that_reads_what_changes() -> None:
    class Annealed:
        tau = 1.0

        def __call__(self, ops: Any, x: Any) -> Any:
            return x * self.tau

    program = Annealed()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ProgramWarning)
        for step in range(12):
            program.tau = 1.0 + step
            np.testing.assert_array_equal(opstage.run(program, X, options=COMPILED), X * (1 + step))
    (warning,) = told
    assert "self.tau" in str(warning.message) and "recorded again 8 times" in str(warning.message)
    line = Annealed.__call__.__code__.co_firstlineno + 1
    assert (warning.filename, warning.lineno) == (__file__, line)


def test_refs_and_temporaries_are_let_go() -> None:
    import gc
    import weakref

    class Temporary:
        def __init__(self, ref: Any):
            self.ref = ref

        def scaled(self, ops: Any) -> Any:
            return self.ref * 2.0

    seen: list[Any] = []

    def program(ops: Any, x: Any) -> Any:
        made = Temporary(x)
        seen.append(weakref.ref(made))
        return made.scaled(ops)

    opstage.run(program, X, options=COMPILED)
    gc.collect()
    assert seen and all(made() is None for made in seen)


def test_a_profiler_at_work_is_told_as_before() -> None:
    import sys

    events: list[str] = []

    def profiler(frame: Any, event: str, arg: Any) -> None:
        if frame.f_code.co_name == "profiled_program":
            events.append(event)

    def profiled_program(ops: Any, x: Any) -> Any:
        return x * 2.0

    before = sys.getprofile()
    sys.setprofile(profiler)
    try:
        opstage.run(profiled_program, X, options=COMPILED)
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(before)
    assert events.count("call") == 2


def test_cprofile_goes_on() -> None:
    import cProfile
    import pstats

    def profiled_program(ops: Any, x: Any) -> Any:
        return x * 3.0

    def after() -> None: ...

    with cProfile.Profile() as profile:
        opstage.run(profiled_program, X, options=COMPILED)
        after()
    assert any(name == "after" for _, _, name in pstats.Stats(profile).stats)  # type: ignore[attr-defined]


class CountingFinder:
    """An import hook that changes with each import, as pytest's does."""

    def __init__(self) -> None:
        self.searches = 0

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        self.searches += 1


def test_an_import_is_no_part_of_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_while_recording.py").write_text("SEEN = []\nSEEN.append(len(SEEN))\nfactor = 2.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    finder = CountingFinder()
    monkeypatch.setattr("sys.meta_path", [finder, *sys.meta_path])

    def program(ops: Any, x: Any) -> Any:
        from imported_while_recording import factor  # type: ignore[import-not-found]

        return x * factor

    np.testing.assert_array_equal(opstage.run(program, X, options=COMPILED), X * 2)
    assert finder.searches


class Counted:
    calls = 0

    def factor(self) -> float:
        type(self).calls += 1
        return 2.0


COUNTED = Counted()


def test_a_change_of_a_class_is_reported_by_the_name_of_its_attribute() -> None:
    with pytest.raises(ProgramError, match=r"the program changes .*\.calls"):
        opstage.run(lambda ops, x: x * [COUNTED][0].factor(), X, options=COMPILED)
