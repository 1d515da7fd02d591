"""The garbage collector rests while any thread records or compiles: what it calls is not a part of a program."""

from __future__ import annotations

import gc
import os
import threading
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options
from opstage.compiler.captures.profiler import observed
from opstage.interpreters.graph.compiled import CompiledOps


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


def test_it_rests_while_a_program_is_compiled_and_goes_on_where_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    collected: list[bool] = []
    compile = CompiledOps.compile

    def compiled(ops: CompiledOps, graph: Any, donated: Any = ()) -> Any:
        collected.append(gc.isenabled())
        if len(collected) > 1:
            raise MemoryError
        return compile(ops, graph, donated)

    monkeypatch.setattr(CompiledOps, "compile", compiled)
    x, options = np.ones(3), Options(backend="compiled")
    opstage.run(lambda ops, x: ops.exp(x), x, options=options)
    assert gc.isenabled()
    with pytest.raises(MemoryError):
        opstage.run(lambda ops, x: ops.sin(x), x, options=options)
    assert collected == [False, False] and gc.isenabled()
