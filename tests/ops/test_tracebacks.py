"""Errors end at the user's line: tracebacks have the user's frames alone, unless all are asked for."""

from __future__ import annotations

import subprocess
import sys
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Spec
from opstage.interpreters.eager_cpu.interpreter import NumpyOps
from opstage.ops.tracebacks import VARIABLE, fold

X = np.ones((2, 3))


def product(ops: Any, x: Any) -> Any:
    return ops.matmul(x, x)


def loss(ops: Any, params: Any, x: Any) -> Any:
    return ops.sum(product(ops, x))


def in_session(do: Callable[[Any, Any], Any], **options: Any) -> Any:
    session = opstage.Session(Options(**options))
    return do(session, session.leaf(X))


@cache
def trained() -> Any:
    trainer = opstage.scalar_trainer(lambda ops, w, x, y: ops.mse_loss(ops.linear(w, None, x), y), np.ones((1, 3)))
    data = {"x": np.ones((9, 3)), "y": np.ones((9, 1))}
    outputs = lambda ops, w, x: ops.linear(w, None, x)  # noqa: E731
    return opstage.fit(trainer, data, epochs=1, batch_size=2, outputs=outputs, progress=False)


CALLS: dict[str, Callable[[], Any]] = {
    "run": lambda: opstage.run(product, X),
    "compiled": lambda: opstage.run(product, X, options=Options(backend="compiled")),
    "value_and_grad": lambda: opstage.value_and_grad(loss, {"w": X}, X),
    "jvp": lambda: opstage.jvp(product, (X,), (X,)),
    "compile": lambda: opstage.compile(product, Spec("2 3")),
    "record": lambda: opstage.record(product, Spec("2 3")),
    "step": lambda: opstage.scalar_trainer(loss, {"w": X}, options=Options(validate=False)).step(0.1, X),
    "trainer": lambda: opstage.scalar_trainer(loss, {"w": X}, Spec("2 3")),
    "missing key": lambda: opstage.run(lambda ops, p: p["a"], {"b": X}),
    "session": lambda: in_session(lambda session, x: session.matmul(x, x)),
    "recording session": lambda: in_session(lambda session, x: session.matmul(x, x), backend="compiled"),
    "session's composite": lambda: in_session(lambda session, x: session.softmax(x, axis=5)),
    "backward of a session": lambda: in_session(lambda session, x: session.backward(x)),
    "loop of a session": lambda: in_session(lambda s, x: s.scan(lambda ops, c, r: (ops.matmul(c, r), r), x, x)),
    "infix of a session": lambda: in_session(lambda session, x: x @ x),
    "infix of a recording session": lambda: in_session(lambda session, x: 2 * x + np.ones(4), backend="compiled"),
    "number of a session": lambda: in_session(lambda session, x: x // np.ones(4)),
    "part of a session": lambda: in_session(lambda session, x: x[:, 7]),
    "truth value of a session": lambda: in_session(lambda session, x: bool(x)),
    "unknown name of a session": lambda: in_session(lambda session, x: x.view),
    "unknown name": lambda: opstage.run(lambda ops, x: x.view(3, 2), X),
    "unknown op": lambda: opstage.run(lambda ops, x: ops.view(x, 3, 2), X),
    "a file of data": lambda: opstage.data.from_csv("nowhere.csv"),
    "ragged data": lambda: opstage.data.from_arrays(x=[[1.0], [1.0, 2.0]]),
    "prediction": lambda: trained().predict(X[:, :2]),
    "evaluation": lambda: trained().evaluate({"x": X}),
    "jacobian": lambda: opstage.jacobian(product, X),
    "Python's own": lambda: opstage.run(lambda ops, x: 1 / 0, X),
}  # fmt: skip


def frames(call: Callable[[], Any]) -> list[str]:
    with pytest.raises(Exception) as caught:
        call()
    return [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_it_ends_at_the_users_line(call: Callable[[], Any]) -> None:
    assert set(frames(call)) == {__file__}


@pytest.mark.parametrize("name", ["run", "step", "missing key"])
def test_all_frames_where_they_are_asked_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "full")
    assert any("/opstage/" in file for file in frames(CALLS[name]))


@pytest.mark.parametrize("name", ["a file of data", "ragged data", "prediction"])
def test_what_led_to_it_is_folded_too(name: str) -> None:
    with pytest.raises(opstage.OpstageError) as caught:
        CALLS[name]()
    shown = "".join(traceback.format_exception(caught.value))
    assert "/opstage/" not in shown.replace(__file__, ""), shown


def test_what_led_to_it_is_named_where_it_was_another_error() -> None:
    with pytest.raises(opstage.UsageError) as caught:
        opstage.data.from_csv("nowhere.csv")
    assert "FileNotFoundError" in "".join(traceback.format_exception(caught.value))


def test_causes_in_a_circle_end() -> None:
    first, second = opstage.UsageError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    fold(first)


def test_an_interrupt_is_folded() -> None:
    def stop(loop: Any, loss: float) -> None:
        raise KeyboardInterrupt

    trainer = trained().trainer
    data = {"x": np.ones((9, 3)), "y": np.ones((9, 1))}
    with pytest.raises(KeyboardInterrupt) as caught:
        opstage.fit(trainer, data, batch_size=2, callbacks=opstage.callbacks.EachStep(stop), progress=False)
    assert {frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)} == {__file__}


def test_arguments_that_a_function_does_not_take_are_named() -> None:
    calls: list[tuple[Callable[[], Any], str]] = [
        (
            lambda: opstage.fit("mlp", epoch=3),
            r"fit has no keyword epoch= \(did you mean 'epochs'\?\); it takes model=, ",
        ),  # type: ignore[call-arg]
        (
            lambda: opstage.custom_op("a", operands="x", shap=1),
            r"custom_op has no keyword shap= \(did you mean 'shape'",
        ),  # type: ignore[call-arg]
        (lambda: opstage.load(), r"load: missing a required argument: 'run'; it takes run=, which=, "),  # type: ignore[call-arg]
        (lambda: trained().evaluate(dat=3), r"evaluate has no keyword dat= \(did you mean 'data'\?\); it takes data="),
        (lambda: trained().evaluate(1, 2), r"evaluate: too many positional arguments; it takes data="),
    ]
    for call, message in calls:
        with pytest.raises(opstage.UsageError, match=message) as caught:
            call()
        assert isinstance(caught.value, TypeError)
        assert {frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)} == {__file__}


def test_a_mistake_of_the_frameworks_own_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NumpyOps, "execute", int)  # a call that C refuses: the innermost frame is the caller's
    whole = frames(lambda: opstage.run(product, X))
    assert any("/opstage/" in file for file in whole)


def test_a_script_and_a_test_show_the_users_lines_alone(tmp_path: Path) -> None:
    call = "opstage.run(lambda ops, x: ops.matmul(x, x), np.ones((2, 3)))"
    text = f"import opstage, numpy as np\n\n\ndef test_it():\n    {call}\n"
    (tmp_path / "test_mine.py").write_text(text)
    (tmp_path / "mine.py").write_text(f"{text}\n\ntest_it()\n")
    root = str(Path(opstage.__file__).parents[1])
    here: dict[str, Any] = {"cwd": tmp_path, "capture_output": True, "text": True, "env": {"PYTHONPATH": root}}
    script = subprocess.run([sys.executable, "mine.py"], **here)
    assert script.stderr.count('File "') == 3 and "/opstage/" not in script.stderr, script.stderr
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"]
    tested = subprocess.run(words, **here)
    assert "ops.matmul(x, x)" in tested.stdout and "opstage/api.py" not in tested.stdout, tested.stdout
