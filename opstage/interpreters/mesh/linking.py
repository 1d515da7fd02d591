"""`link`: how the processes of one host find each other's sockets."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import struct
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from .board import Board
from .near import Near

_PATIENCE = 5.0
"""Seconds in which processes that have met by MPI call each other."""
_SAID = 1.0
"""Seconds in which one that calls says who it is."""

_log = logging.getLogger(__name__)


def link(mpi: Any, process: int, hosts: Sequence[str]) -> Near | None:
    """Return the links to the other processes of this host, or None if there are none; all processes call it.

    Near are those that MPI starts on one host and that reach each other's sockets; of a host all do, or none.
    """
    here = mpi.COMM_WORLD.Split_type(mpi.COMM_TYPE_SHARED)
    names = here.allgather((process, hosts[process]))
    others = [other for other, host in names if other != process and host == hosts[process]]
    listener = _listener() if others and len(others) == len(names) - 1 and _can_share() else None
    secret = secrets.token_bytes(16)
    met = dict(here.allgather((process, (None if listener is None else listener.getsockname(), secret))))
    sockets: dict[int, socket.socket] = {}
    if listener is not None and all(met[other][0] is not None for other in others):
        try:
            for other in others:
                if other < process:
                    sockets[other] = call(met[other][0], process, secret)
            sockets.update(answer(listener, {other: met[other][1] for other in others if other > process}))
        except OSError as error:
            _log.info("process %d does not reach the sockets of others of its host: %s", process, error)
    if listener is not None:
        listener.close()
    every = all(here.allgather(len(sockets) == len(others)))
    here.Free()
    if every and others:
        return Near(sockets, _board(process, others))
    for each in sockets.values():
        each.close()
    if others:
        _log.info("processes of %s share no memory; what they send each other goes over MPI", hosts[process])
    return None


def _board(process: int, others: Sequence[int]) -> Board | None:
    try:
        return Board(process, others)
    except OSError as error:
        _log.info("process %d has no memory for notes, which go through sockets: %s", process, error)
        return None


def _can_share() -> bool:
    if sys.platform != "linux" or not hasattr(os, "memfd_create"):
        return False
    try:
        os.close(os.memfd_create("opstage"))
    except OSError:  # a sandbox may forbid it
        return False
    return True


def _listener() -> socket.socket | None:
    try:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        made.bind(b"\0opstage " + secrets.token_hex(16).encode())  # abstract: nothing is left in the file system
        made.listen()
    except OSError:
        return None
    return made


def call(address: bytes, process: int, secret: bytes) -> socket.socket:
    """Return a connection to a process of this host. Raises OSError."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.settimeout(_PATIENCE)
    try:
        made.connect(address)
        made.send(struct.pack("<q", process) + secret)  # which only those know that MPI has joined
    except OSError:
        made.close()
        raise
    return made


def answer(listener: socket.socket, expected: Mapping[int, bytes]) -> dict[int, socket.socket]:
    """Return the connections of the expected processes, known by their secrets; others are closed. Raises OSError."""
    sockets: dict[int, socket.socket] = {}
    until = time.monotonic() + _PATIENCE
    while len(sockets) < len(expected):
        listener.settimeout(max(1e-3, until - time.monotonic()))
        made, _ = listener.accept()
        made.settimeout(_SAID)
        process = _caller(made, expected.keys() - sockets.keys(), expected)
        if process is None:
            made.close()
        else:
            sockets[process] = made
    return sockets


def _caller(made: socket.socket, missing: Collection[int], expected: Mapping[int, bytes]) -> int | None:
    try:
        said = made.recv(256)
    except OSError:
        return None
    process = struct.unpack("<q", said[:8])[0] if len(said) > 8 else -1
    return process if process in missing and secrets.compare_digest(said[8:], expected[process]) else None
