"""Names of the last release: each works as the new one does, and warns at the user's line."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import optim
from opstage.interop.weights import read_weights


class Plain(optim.Optimizer):
    def update(self, ops: Any, p: Any, g: Any, slots: Any, scalars: Any, /) -> Any:
        return p, slots


def total(ops: Any, x: Any) -> Any:
    return ops.sum(x)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: getattr(opstage, "trim")(), "opstage.trim is now opstage.empty_cache"),  # noqa: B009
        (lambda: opstage.Session().trim(), "Session.trim is now Session.empty_cache"),
        (lambda: opstage.scalar_trainer(total, np.ones(2)).trim(), "ScalarTrainer.trim is now"),
        (lambda: opstage.compile(total, np.ones(2)).trim(), "CompiledOut.trim is now"),
        (lambda: optim.adam().kept, "Optimizer.kept is now num_slots"),
        (lambda: type("Own", (Plain,), {"kept": 2}), "Own.kept is now num_slots"),
    ],
)
def test_an_old_name_warns_at_the_users_line(call: Callable[[], Any], message: str) -> None:
    with pytest.warns(DeprecationWarning, match=message) as caught:
        call()
    assert [each.filename for each in caught] == [__file__]


def test_kept_slots_are_num_slots() -> None:
    with pytest.warns(DeprecationWarning, match="kept"):
        own: Any = type("Own", (Plain,), {"kept": 2})
    assert (own.num_slots, len(own(0.1).slots((3,), np.dtype("float32"), "p"))) == (2, 2)


def test_weights_are_found_under_their_old_path() -> None:
    with pytest.warns(DeprecationWarning, match=r"opstage\.training\.weights is now opstage\.interop\.weights"):
        module = importlib.reload(importlib.import_module("opstage.training.weights"))
    assert module.read_weights is read_weights
