"""Errors of constructors end at the user's line, and an argument that is not taken is named with the nearest one."""

from __future__ import annotations

import copy
import inspect
import pickle
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import callbacks, data, optim
from opstage.ops.errors import UsageError
from opstage.ops.tracebacks import VARIABLE, ArgumentsError
from opstage.optim import schedule

rows = data.from_arrays(x=np.ones((3, 2)))
adamw: Any = optim.adamw
sgd: Any = optim.sgd
Dataset: Any = data.Dataset
EarlyStopping: Any = callbacks.EarlyStopping

MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "adamw": (lambda: optim.adamw(lr=-1), "lr must be a finite number"),
    "keyword": (lambda: adamw(weight_deca=0.1), "AdamW has no keyword weight_deca= .*'weight_decay'.*it takes lr=, "),
    "unlike any": (lambda: sgd(0.1, foo=1), "Sgd has no keyword foo=; it takes lr=, weight_decay=$"),
    "too many": (lambda: sgd(0.1, 0.0, 3, 4), "Sgd: too many positional arguments; it takes lr=, weight_decay="),
    "missing": (lambda: EarlyStopping(), "EarlyStopping: missing a required argument: 'patience'"),
    "loader": (lambda: data.Loader(rows, 9), "batch_size=9"),
    "prefetch": (lambda: data.Prefetch(data.Loader(rows, 1), 0), "depth=0"),
    "dataset": (lambda: data.Dataset(("x",), (np.array([np.nan]),)), "row 0 holds nan"),
    "dataset's keyword": (lambda: Dataset(x=rows), "Dataset has no keyword x="),
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
