"""What the collector does not look through while tests run, and that it stays so."""

from __future__ import annotations

import gc
import weakref

import pytest

from tests import conftest


class Held:
    """An object that refers to itself: only the collector frees it."""

    def __init__(self) -> None:
        self.itself = self


def test_what_a_test_unfreezes_is_frozen_again() -> None:
    dropped = weakref.ref(Held())
    gc.unfreeze()
    conftest.freeze_again()
    assert gc.get_freeze_count() > 0
    assert dropped() is None, "what is frozen before it is collected stays for ever"


def test_what_a_test_leaves_behind_is_frozen() -> None:
    left = [Held() for _ in range(100)]
    before = gc.get_freeze_count()
    conftest.freeze_again()
    assert gc.get_freeze_count() >= before + len(left)
    dropped = weakref.ref(left.pop())
    gc.collect()
    assert dropped() is not None


@pytest.mark.parametrize("long", [-1.0, float("inf")])
def test_slow_collections_of_everything_are_noted(long: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest.SlowCollections, "LONG", long)
    noted = conftest.SlowCollections()
    gc.callbacks.append(noted)
    try:
        gc.collect(1)
        assert not noted.met
        gc.collect()
        assert noted.met == (long < 0)
    finally:
        gc.callbacks.remove(noted)
    assert conftest.slow_collections in gc.callbacks


def test_after_one_all_is_frozen_again_at_the_end_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    monkeypatch.setattr(conftest, "freeze_again", lambda: looked.append(True))
    for met in (False, True, False):
        looked.clear()
        protocol = conftest.pytest_runtest_protocol()
        next(protocol)
        monkeypatch.setattr(conftest.slow_collections, "met", met)
        assert next(protocol, "ended") == "ended"
        assert bool(looked) == met and not conftest.slow_collections.met
