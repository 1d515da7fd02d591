"""Processes of one host find each other's sockets, whoever else calls there, or all of them go another way."""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from opstage.interpreters.mesh import linking
from opstage.interpreters.mesh.near import Near
from opstage.interpreters.native.notes import NAME

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are near on Linux alone")
PATIENCE = 60.0


class World:
    """The communicator of threads that stand for the processes of a host."""

    COMM_TYPE_SHARED = None

    def __init__(self, count: int):
        self.COMM_WORLD = self
        self._said: list[Any] = [None] * count
        self._met = threading.Barrier(count, timeout=PATIENCE)
        self._own = threading.local()

    def begin(self, process: int) -> None:
        self._own.process = process

    def Split_type(self, kind: Any) -> World:  # noqa: N802
        return self

    def allgather(self, said: Any) -> list[Any]:
        self._said[self._own.process] = said
        self._met.wait()
        found = list(self._said)
        self._met.wait()
        return found

    def Free(self) -> None:  # noqa: N802
        pass


def linked(hosts: list[str], before: Callable[[int], None] = lambda process: None) -> list[Near | None]:
    """What `link` returns on each process."""
    world, found = World(len(hosts)), dict[int, Near | None]()

    def one(process: int) -> None:
        world.begin(process)
        before(process)
        found[process] = linking.link(world, process, hosts)

    threads = [threading.Thread(target=one, args=(process,)) for process in range(len(hosts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    return [found[process] for process in range(len(hosts))]


@pytest.mark.parametrize("count", [2, 4])
def test_all_processes_of_a_host_are_linked(count: int) -> None:
    found = linked(["here"] * count)
    for process, near in enumerate(found):
        assert near is not None and near.processes == {*range(count)} - {process}
        near.tell({p: np.array(process) for p in near.processes}, dict.fromkeys(near.processes, 1), b"x", stays=False)
    for near in found:
        assert near is not None
        near.hear()
        assert {p: int(note.vector.view(np.int64)[0]) for (p, _), note in near.notes.items()} == {
            p: p for p in near.processes
        }
        assert {note.name for note in near.notes.values()} == {b"x".ljust(NAME, b"\0")}


def test_one_of_another_name_is_near_nobody() -> None:
    assert linked(["here", "here", "there"]) == [None] * 3


def test_without_memory_to_share_in_one_of_them_all_go_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    forbidden = threading.local()
    made = os.memfd_create

    def memfd_create(name: str) -> int:
        if getattr(forbidden, "here", False):
            raise PermissionError("forbidden")
        return made(name)

    def before(process: int) -> None:
        forbidden.here = process == 1

    monkeypatch.setattr(os, "memfd_create", memfd_create)
    assert linked(["here"] * 3, before) == [None] * 3


def test_strangers_are_not_taken_for_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linking, "_SAID", 0.02)
    listener = linking._listener()
    assert listener is not None
    expected = {1: b"a secret".ljust(16), 2: b"another".ljust(16)}
    said = [b"", b"hello", struct.pack("<q", 1), struct.pack("<q", 1) + expected[2], struct.pack("<q", 3) + expected[1]]
    strangers = [linking.call(listener.getsockname(), 1, b"a guess".ljust(16))]
    for each in (*said, struct.pack("<q", 9)):
        strangers.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        strangers[-1].connect(listener.getsockname())
        if each:
            strangers[-1].send(each)
    ours = [linking.call(listener.getsockname(), process, secret) for process, secret in expected.items()]
    again = linking.call(listener.getsockname(), 1, expected[1])  # one that is there has no second connection
    found = linking.answer(listener, expected)
    assert found.keys() == expected.keys()
    for each, process in zip(ours, expected):
        each.send(b"it is me")
        assert found[process].recv(64) == b"it is me"
    for each in (*strangers, *ours, again, *found.values(), listener):
        each.close()


def test_one_that_does_not_call_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linking, "_PATIENCE", 0.02)
    listener = linking._listener()
    assert listener is not None
    with pytest.raises(OSError, match="timed out"):
        linking.answer(listener, {1: b"a secret".ljust(16)})
    listener.close()
