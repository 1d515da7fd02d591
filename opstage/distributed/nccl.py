"""The transport between processes with a GPU each: GPU data goes over NCCL, everything else over MPI.

NCCL only moves bytes: only `send` and `recv` are used, so sums are added in the order of the tree here too, with the
same bits as one process that hosts all ranks on one GPU. The host's transport checks that all processes are in the same
exchange, and detects failures and timeouts; it is used before each exchange of the eager interpreter, and before each
run of a compiled program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, final

import numpy as np

from ..ops.errors import RankError, UsageError
from ..ops.host_arrays import Array
from .processes import at_most
from .transport import PendingExchange, Transport

_WELL, _GOING_ON = 0, 7  # ncclSuccess and ncclInProgress
_NAME_BYTES = 256
_NOTHING = np.empty(0, np.uint8)


@final
class DeviceBytes:
    """Bytes in GPU memory, by version 3 of the CUDA array interface."""

    def __init__(self, address: int, nbytes: int):
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": (nbytes,),
            "typestr": "|u1",
            "strides": None,
            "version": 3,
        }


@final
class NcclTransport:
    """The processes of the host transport `control`, each with a GPU; host data uses that transport.

    patience    seconds in which all processes must reach their first exchange
    """

    def __init__(self, control: Transport, patience: float, nccl: Any = None):
        """`nccl` is the module nccl.core, or a test double. Raises UsageError if it is missing."""
        self._control = control
        self._nccl = load() if nccl is None else nccl
        self._patience = patience
        self._communicator: Any = None
        self._device: Any = None
        self._called = "the start of NCCL"
        self._others = [process for process in range(control.processes) if process != control.process]

    # The engine of the host -------------------------------------------------------------------------------------------

    @property
    def process(self) -> int:
        return self._control.process

    @property
    def processes(self) -> int:
        return self._control.processes

    @property
    def hosts(self) -> Sequence[str]:
        return self._control.hosts

    @property
    def agreed(self) -> bool:
        return self._control.agreed

    @agreed.setter
    def agreed(self, value: bool) -> None:
        self._control.agreed = value

    @property
    def waited(self) -> float:
        return self._control.waited

    @property
    def sent(self) -> int:
        return self._control.sent

    @sent.setter
    def sent(self, value: int) -> None:
        self._control.sent = value

    def exchange(self, parts: Mapping[int, Array], room: Mapping[int, Array], called: str) -> None:
        """See `Transport.exchange`."""
        self._control.exchange(parts, room, called)

    def start(self, parts: Mapping[int, Array], room: Mapping[int, Array], called: str) -> PendingExchange:
        """See `Transport.start`."""
        return self._control.start(parts, room, called)

    def watch(self, done: Callable[[], bool], called: str) -> None:
        """See `Transport.watch`."""
        self._control.watch(done, called)

    def leave_run(self, error: BaseException) -> None:
        """See `Transport.leave_run`."""
        self._control.leave_run(error)

    def fail(self, error: BaseException) -> bool:
        """See `Transport.fail`."""
        return self._control.fail(error)

    def abort(self, code: int) -> None:
        """See `Transport.abort`."""
        self._control.abort(code)

    def wait_at_most(self, seconds: float) -> None:
        """See `Transport.wait_at_most`."""
        self._patience = seconds
        self._control.wait_at_most(seconds)

    # GPUs -------------------------------------------------------------------------------------------------------------

    def connect(self, device: Any) -> None:
        """Connect the GPUs of all processes, which all call this; a second call does nothing.

        Raises UsageError, the same on all processes, if two of them have the same GPU.
        """
        if self._communicator is not None:
            if device is not self._device:
                raise UsageError(
                    f"this process sends from {self._device}, and cannot send from {device} too: a process of a mesh "
                    "has one GPU"
                )
            return
        self._require_apart(device)
        identity = np.frombuffer(bytes(self._nccl.get_unique_id()), np.uint8).copy() if not self.process else None
        called = "the number of NCCL's communicator"
        if identity is None:
            identity = np.zeros(len(bytes(self._nccl.get_unique_id(empty=True))), np.uint8)
            self._control.exchange({}, {0: identity}, called)
        else:
            self._control.exchange(dict.fromkeys(self._others, identity), {}, called)
        unique = self._nccl.UniqueId.from_bytes(identity.tobytes())
        # a process that waits in NCCL for a dead one cannot receive messages
        with device.lock, at_most(self._patience):
            device.enter()
            try:
                self._communicator = self._nccl.Communicator.init(self.processes, self.process, unique)
            except Exception as error:
                raise RankError(f"NCCL could not join the GPUs of {self.processes} processes: {error}") from error
        self._device = device
        device.patience = self._wait

    def _require_apart(self, device: Any) -> None:
        said = f"{self.hosts[self.process]}\n{device.identity}".encode()[:_NAME_BYTES]
        mine = np.zeros(_NAME_BYTES, np.uint8)
        mine[: len(said)] = np.frombuffer(said, np.uint8)
        every = {process: np.zeros(_NAME_BYTES, np.uint8) for process in self._others}
        self._control.exchange(dict.fromkeys(self._others, mine), every, "which GPU each process has")
        every[self.process] = mine
        first: dict[bytes, int] = {}
        for process in range(self.processes):
            other = first.setdefault(every[process].tobytes(), process)
            if other != process:
                raise UsageError(
                    f"processes {other} and {process} of {self.processes} have one GPU, {device_name(every[process])}: "
                    "on device 'cuda' each process of a mesh needs its own GPU. Start as many processes as there are "
                    "GPUs, each of which hosts more ranks, and name no number of a GPU, nor have CUDA_VISIBLE_DEVICES "
                    "show the same one to two of them"
                )

    def begin_on_device(
        self, device: Any, number: int, parts: Mapping[int, Any], room: Mapping[int, Any], called: str
    ) -> None:
        """See `DeviceTransport.begin_on_device`."""
        nbytes = sum(each.size * each.dtype.itemsize for each in parts.values())
        if not device.notes:
            self.connect(device)
            self.meet(called, parts, room)
            self._control.sent += nbytes
        work = Moving(self, tuple(parts), tuple(room), called, nbytes)
        device.aside(number, work, *parts.values(), *room.values())

    def meet(self, called: str, to: Sequence[int] | Mapping[int, Any], come: Sequence[int] | Mapping[int, Any]) -> None:
        """Return when the processes that will send something are about to do the same; raises the errors of
        `exchange`."""
        self._called = called
        self._control.exchange(
            dict.fromkeys(to, _NOTHING), {process: np.empty(0, np.uint8) for process in come}, called
        )

    def begin_run(self, device: Any, called: str, sent: int) -> None:
        """Begin a run, on all processes, of a recorded program that sends `sent` bytes."""
        self.connect(device)
        self.meet(called, self._others, self._others)
        self._control.sent += sent

    def move(self, stream: Any, sends: Sequence[tuple[int, Any]], comes: Sequence[tuple[int, Any]]) -> None:
        """Enqueue an exchange on a stream: (process, bytes) of all sends and receives."""
        try:
            with self._nccl.group():
                for process, each in sends:
                    self._communicator.send(each, process, stream=stream)
                for process, each in comes:
                    self._communicator.recv(each, process, stream=stream)
        except Exception as error:
            raise self._failed(str(error)) from error

    # Waiting ----------------------------------------------------------------------------------------------------------

    def _wait(self, done: Callable[[], bool]) -> None:
        """Wait for GPU work, possibly with exchanges, until it is done or cannot complete."""

        def looked() -> bool:
            if done():
                return True
            code = int(self._communicator.get_async_error())
            if code not in (_WELL, _GOING_ON):
                raise self._failed(str(self._nccl.get_error_string(code)))
            return False

        try:
            self._control.watch(looked, self._called)
        except RankError:
            with suppress(Exception):  # ends kernels that wait for a process that will never send
                self._communicator.abort()
            raise

    def _failed(self, said: str) -> RankError:
        where = f"process {self.process} of {self.processes} on {self.hosts[self.process]}"
        return RankError(
            f"NCCL failed on {where} in {self._called}: {said}; --resume continues from the last checkpoint"
        )


@final
class Moving:
    """An exchange as side work: its buffers are those sent `to` processes, then those that `come` from processes."""

    def __init__(self, transport: NcclTransport, to: tuple[int, ...], come: tuple[int, ...], called: str, sent: int):
        self._transport, self._to, self._come, self.called, self.sent = transport, to, come, called, sent

    def __call__(self, stream: Any, places: Sequence[tuple[int, int]]) -> None:
        sends = list(zip(self._to, places))
        comes = list(zip(self._come, places[len(sends) :], strict=True))
        # both sides skip empty messages
        self._transport.move(
            stream,
            [(process, DeviceBytes(*place)) for process, place in sends if place[1]],
            [(process, DeviceBytes(*place)) for process, place in comes if place[1]],
        )


def device_name(said: Array) -> str:
    """Return a description of the GPU in a process's message."""
    host, _, identity = said.tobytes().rstrip(b"\0").decode(errors="replace").partition("\n")
    return f"{identity} of {host}"


def load() -> Any:
    """Import nccl.core. Raises UsageError if it or its library is missing."""
    try:
        module = import_module("nccl.core")
        why = "" if module.get_version().libnccl is not None else "libnccl.so.2 was not found"
    except (ImportError, OSError, RuntimeError) as error:
        why = str(error)
    if why:
        raise UsageError(
            "several processes host a mesh on device 'cuda', but nccl4py, by which their GPUs meet, cannot be used "
            f"({why}): pip install 'opstage[nccl]'"
        )
    return module


_JOINED: list[tuple[Transport, NcclTransport]] = []


def on_gpus(control: Transport, patience: float) -> NcclTransport:
    """Return the transport between the GPUs of these processes, one per host transport."""
    for known, made in _JOINED:
        if known is control:
            return made
    _JOINED.append((control, NcclTransport(control, patience)))
    return _JOINED[-1][1]
