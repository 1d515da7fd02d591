"""A stand-in for `nccl.core`: its names and signatures, for processes that are threads and GPUs that are simulated.

Nothing of NCCL is shown by it: neither its speed nor its order on streams, nor that it takes what it is given.
"""

from __future__ import annotations

import ctypes
import queue
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

PATIENCE = 120.0


class UniqueId:
    """128 bytes."""

    def __init__(self, text: bytes = bytes(128)):
        self.text = text

    def __bytes__(self) -> bytes:
        return self.text

    @staticmethod
    def from_bytes(b: bytes) -> UniqueId:
        assert len(b) == 128
        return UniqueId(bytes(b))


class Nccl:
    """The module, one for all processes of a test.

    calls       (process, what, peer, bytes), in the order of each process
    failing     what `get_async_error` says
    """

    UniqueId = UniqueId

    def __init__(self) -> None:
        self.lines: dict[tuple[int, int], Any] = {}
        self.lock = threading.Lock()
        self.calls: list[tuple[int, str, int, int]] = []
        self.failing = 0
        self.aborted: list[int] = []
        self.local = threading.local()
        module = self

        class Communicator:
            """Joins processes by queues."""

            @classmethod
            def init(cls, nranks: int, rank: int, unique_id: Any, config: Any = None) -> Communicator:
                assert bytes(unique_id) == b"\x07" * 128, "the id is that of process 0"
                return cls(nranks, rank)

            def __init__(self, nranks: int, rank: int):
                self.nranks, self.rank = nranks, rank

            def send(self, sendbuf: Any, peer: int, *, stream: Any = None) -> None:
                module.asked("send", self.rank, peer, sendbuf)

            def recv(self, recvbuf: Any, peer: int, *, stream: Any = None) -> None:
                module.asked("recv", self.rank, peer, recvbuf)

            def get_async_error(self) -> int:
                return module.failing

            def abort(self) -> None:
                module.aborted.append(self.rank)

        self.Communicator = Communicator

    def get_unique_id(self, empty: bool = False) -> UniqueId:
        return UniqueId() if empty else UniqueId(b"\x07" * 128)

    def get_error_string(self, nccl_result: int) -> str:
        return {2: "unhandled system error", 6: "remote process exited or there was a network error"}[nccl_result]

    @contextmanager
    def group(self) -> Iterator[None]:
        self.local.asked = deque()
        yield
        asked, self.local.asked = self.local.asked, None
        for what, rank, peer, place in sorted(asked, key=lambda each: each[0] != "send"):  # all at once, so none waits
            if what == "send":
                self.line(rank, peer).put(bytes(place))
            else:
                came = self.line(peer, rank).get(timeout=PATIENCE)
                assert len(came) == len(place), (peer, rank, len(came), len(place))
                place[:] = np.frombuffer(came, np.uint8)

    def asked(self, what: str, rank: int, peer: int, buffer: Any) -> None:
        assert self.local.asked is not None, "a send that is not in a group waits for its peer"
        described = buffer.__cuda_array_interface__
        address, read_only = described["data"]
        (count,) = described["shape"]
        assert (described["typestr"], described["strides"], read_only) == ("|u1", None, False) and count
        place = np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(address))
        self.local.asked.append((what, rank, peer, place))
        with self.lock:
            self.calls.append((rank, what, peer, count))

    def line(self, source: int, target: int) -> Any:
        with self.lock:
            return self.lines.setdefault((source, target), queue.Queue())
