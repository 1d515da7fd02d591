"""What the collector does not look through while tests run, and that it stays so."""

from __future__ import annotations

import gc
import itertools
import weakref

import pytest

from tests import conftest


class Held:
    """An object that refers to itself: only the collector frees it."""

    def __init__(self) -> None:
        self.itself = self


def test_what_a_test_unfreezes_is_frozen_again() -> None:
    assert gc.get_freeze_count() > 0
    dropped = weakref.ref(Held())
    gc.unfreeze()
    conftest.freeze_again()
    assert gc.get_freeze_count() > 0
    assert dropped() is None, "what is frozen before it is collected stays for ever"


def test_where_all_is_frozen_nothing_is_collected() -> None:
    assert gc.get_freeze_count() > 0
    gc.disable()
    try:
        dropped = weakref.ref(Held())
        conftest.freeze_again()
        assert dropped() is not None
    finally:
        gc.enable()


def test_it_is_looked_at_after_some_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest, "ended", itertools.count(1))
    tests, looked = [], []
    monkeypatch.setattr(conftest, "freeze_again", lambda: looked.append(len(tests)))
    for test in range(1, 2 * conftest.AT + 2):
        tests.append(test)
        protocol = conftest.pytest_runtest_protocol()
        next(protocol)
        assert next(protocol, "ended") == "ended"
    assert looked == [conftest.AT, 2 * conftest.AT]
