"""The garbage collector rests while any thread records: what it calls is not a part of a program."""

from __future__ import annotations

import gc
import os
import threading

import pytest

from opstage.interpreters.captures.observation import observed


def test_it_rests_until_the_last_of_overlapping_recordings_has_ended() -> None:
    began, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def record() -> None:
        with observed():
            began.set()
            may_end.wait()
        ended.set()

    other = threading.Thread(target=record)
    assert gc.isenabled()
    other.start()
    began.wait()
    with observed():
        may_end.set()
        ended.wait()
        assert not gc.isenabled()  # the one that began first has ended
        with observed():
            pass
        assert not gc.isenabled()
    other.join()
    assert gc.isenabled()


def test_where_it_was_off_it_stays_so() -> None:
    gc.disable()
    try:
        with observed():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")
def test_a_child_collects_though_another_thread_was_recording() -> None:
    began, may_end = threading.Event(), threading.Event()

    def record() -> None:
        with observed():
            began.set()
            may_end.wait()

    other = threading.Thread(target=record)
    other.start()
    began.wait()
    child = os.fork()
    if not child:
        os._exit(0 if gc.isenabled() else 1)
    may_end.set()
    other.join()
    assert os.waitpid(child, 0)[1] == 0 and gc.isenabled()
