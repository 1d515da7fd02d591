"""What the collector does not look through while tests run, and that it stays so."""

from __future__ import annotations

import gc
import weakref

from tests import conftest


class Held:
    """An object that refers to itself: only the collector frees it."""

    def __init__(self) -> None:
        self.itself = self


def test_what_a_test_unfreezes_is_frozen_after_it() -> None:
    assert gc.get_freeze_count() > 0
    protocol = conftest.pytest_runtest_protocol()
    next(protocol)
    dropped = weakref.ref(Held())
    gc.unfreeze()
    assert gc.get_freeze_count() == 0
    assert next(protocol, "ended") == "ended"
    assert gc.get_freeze_count() > 0
    assert dropped() is None, "what is frozen before it is collected stays for ever"


def test_without_that_nothing_is_collected() -> None:
    protocol = conftest.pytest_runtest_protocol()
    next(protocol)
    gc.disable()
    try:
        dropped = weakref.ref(Held())
        assert next(protocol, "ended") == "ended"
        assert dropped() is not None
    finally:
        gc.enable()
