"""Errors end at the user's line, name the nearest argument, and the dtype that was given."""

from __future__ import annotations

import copy
import inspect
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Spec, callbacks, data, optim
from opstage.data import from_arrays
from opstage.interpreters.eager_cpu.interpreter import NumpyOps
from opstage.ops.errors import UsageError
from opstage.ops.tracebacks import VARIABLE, ArgumentsError, fold
from opstage.optim import schedule

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
            r"fit does not have a keyword epoch= \(did you mean 'epochs'\?\); it takes model=, ",
        ),  # type: ignore[call-arg]
        (
            lambda: opstage.custom_op("a", operands="x", shap=1),
            r"custom_op does not have a keyword shap= \(did you mean 'shape'",
        ),  # type: ignore[call-arg]
        (lambda: opstage.load(), r"load: missing a required argument: 'run'; it takes run=, which=, "),  # type: ignore[call-arg]
        (
            lambda: trained().evaluate(dat=3),
            r"evaluate does not have a keyword dat= \(did you "
            r"mean 'data'\?\); it takes data=",
        ),
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


# Errors of constructors end at the user's line, and an argument that is not taken is named with the nearest one -------

rows = data.from_arrays(x=np.ones((3, 2)))
adamw: Any = optim.adamw
sgd: Any = optim.sgd
Dataset: Any = data.Dataset
EarlyStopping: Any = callbacks.EarlyStopping

MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "adamw": (lambda: optim.adamw(lr=-1), "lr must be a finite number"),
    "keyword": (
        lambda: adamw(weight_deca=0.1),
        "AdamW does not have a keyword weight_deca= .*'weight_decay'.*it takes lr=, ",
    ),
    "unlike any": (lambda: sgd(0.1, foo=1), "Sgd does not have a keyword foo=; it takes lr=, weight_decay=$"),
    "too many": (lambda: sgd(0.1, 0.0, 3, 4), "Sgd: too many positional arguments; it takes lr=, weight_decay="),
    "missing": (lambda: EarlyStopping(), "EarlyStopping: missing a required argument: 'patience'"),
    "loader": (lambda: data.Loader(rows, 9), "batch_size=9"),
    "prefetch": (lambda: data.Prefetch(data.Loader(rows, 1), 0), "depth=0"),
    "dataset": (lambda: data.Dataset(("x",), (np.array([np.nan]),)), "row 0 holds nan"),
    "dataset's keyword": (lambda: Dataset(x=rows), "Dataset does not have a keyword x="),
    "early stopping": (lambda: callbacks.EarlyStopping(patience=0), "patience must be"),
    "moving average": (lambda: callbacks.Ema(2.0), "2.0"),
    "schedule": (lambda: schedule.Cosine(-1, 3), "lr must be"),
    "group": (lambda: optim.grouped(optim.adamw(), {"a": {"lr": -1}}), "lr must be"),
    "no Spec": (
        lambda: opstage.compile(lambda ops, x, y: x, opstage.Spec("3")),
        "takes x, y, but there is no Spec for y",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_an_error_ends_at_the_call(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    make, message = MISTAKES[name]
    with pytest.raises(UsageError, match=message) as raised:
        make()
    frames = traceback.extract_tb(raised.value.__traceback__)
    # behind the frame of the decorator, which Python adds as the error leaves it
    assert {frame.filename for frame in frames if frame.name != "called"} == {__file__}
    monkeypatch.setenv(VARIABLE, "full")
    with pytest.raises(UsageError) as raised:
        make()
    assert any("opstage" in frame.filename for frame in traceback.extract_tb(raised.value.__traceback__)[2:])


def test_arguments_that_do_not_fit_are_a_type_error_too() -> None:
    with pytest.raises(TypeError) as raised:
        sgd(0.1, foo=1)
    assert isinstance(raised.value, ArgumentsError)


def test_a_type_error_within_a_constructor_stays_one() -> None:
    with pytest.raises(TypeError) as raised:
        data.Loader(3, 2)  # type: ignore[arg-type]
    assert not isinstance(raised.value, ArgumentsError)


def test_classes_keep_their_signatures_and_their_objects_copies() -> None:
    assert list(inspect.signature(optim.adamw).parameters) == ["lr", "weight_decay", "betas", "eps"]
    made = optim.adamw(1e-3)
    for like in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made), replace(made)):
        assert like == made and type(like) is optim.adamw


# An error of dtypes says so where an array came in a dtype that a program does not have -------------------------------

PIXELS, Y = np.ones((4, 3), np.uint8), np.ones((4, 2))


def of_pixels(ops: Any, params: Any, x: Any, y: Any) -> Any:
    return ops.mse_loss(ops.linear(params["w"], None, x), y)


def trainer() -> Any:
    return opstage.scalar_trainer(of_pixels, {"w": np.ones((2, 3))})


WIDENED: dict[str, Callable[[], Any]] = {
    "an argument": lambda: opstage.run(lambda ops, x: ops.exp(x), PIXELS),
    "a leaf": lambda: opstage.run(lambda ops, tree: ops.exp(tree["x"][0]), {"x": [PIXELS]}),
    "parameters": lambda: opstage.run(of_pixels, {"w": PIXELS[:2]}, np.ones((4, 3)), Y),
    "gradient": lambda: opstage.value_and_grad(of_pixels, {"w": np.ones((2, 3))}, PIXELS, Y),
    "step": lambda: trainer().step(0.1, PIXELS, Y),
    "step by name": lambda: trainer().step(0.1, {"y": Y, "x": PIXELS}),
    "step of a dataset": lambda: trainer().step(0.1, from_arrays(x=PIXELS, y=Y)),
    "fit": lambda: opstage.fit(trainer(), {"x": PIXELS, "y": Y}, epochs=1, batch_size=2, progress=False),
}


@pytest.mark.parametrize("call", WIDENED.values(), ids=WIDENED)
def test_the_dtype_that_was_given_is_named(call: Callable[[], Any]) -> None:
    with pytest.raises(opstage.OpstageError, match="int64") as caught:
        call()
    (note,) = caught.value.__notes__
    assert "of uint8 was given, and is int64 in a program" in note and "3) of" in note


def test_other_errors_and_other_dtypes_have_no_note() -> None:
    calls: tuple[tuple[Any, Callable[[Any, Any], Any]], ...] = (
        (np.ones((4, 3), np.int64), lambda ops, x: ops.exp(x)),
        (PIXELS, lambda ops, x: ops.reshape(x, shape=(5, 5))),
    )
    for x, program in calls:
        with pytest.raises(opstage.OpstageError) as caught:
            opstage.run(program, x)
        assert not hasattr(caught.value, "__notes__")
