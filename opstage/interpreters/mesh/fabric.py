"""An engine that moves bytes between processes, as a mesh asks for it, and the op by which a program asks.

An engine only moves: every sum is added up here, in the order of the tree, so no engine can change a bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, Protocol, final
from weakref import WeakValueDictionary

import numpy as np

from ...forks import make_lock
from ...ops.errors import UsageError
from ...ops.kinds import Effect
from ...ops.primitive import Primitive, no_flops
from ...ops.registered import register
from ...ops.types import TensorType
from ..host import Array, packed


class Flight(Protocol):
    """An exchange under way."""

    def wait(self) -> None:
        """Return when all of it has come, and the errors of `Fabric.exchange`."""
        ...


class Fabric(Protocol):
    """The processes that host a mesh, each as many ranks as the others, in the order of the ranks.

    process     the number of this one, of `processes`
    agreed      whether they have compared what they are about to do
    waited      seconds that this one has waited for others, in all
    sent        bytes that it has sent them, in all, headers left out
    hosts       the machine of each
    """

    agreed: bool
    sent: int

    @property
    def waited(self) -> float: ...
    @property
    def hosts(self) -> Sequence[str]: ...
    @property
    def process(self) -> int: ...
    @property
    def processes(self) -> int: ...

    def exchange(self, parts: Mapping[int, Array], room: Mapping[int, Array], called: str) -> None:
        """Send `parts[p]` to each process p, and fill `room[p]` with what p sends to this one.

        All processes come here in one order; `called` says in words what for, alike on all. Raises RankError where
        another process has failed, died, stands still, or is in an exchange that is called otherwise.
        """
        ...

    def start(self, parts: Mapping[int, Array], room: Mapping[int, Array], called: str) -> Flight:
        """Begin an exchange, which goes on while this process computes; nobody writes over `parts` until it is over.

        All processes start exchanges in one order. They may wait for them in another one.
        """
        ...

    def watch(self, done: Callable[[], bool], called: str) -> None:
        """Return once `done()` says so of work that others have a part in; the errors of `exchange`."""
        ...

    def fail(self, error: BaseException) -> bool:
        """Tell all others that this process fails, before it leaves; whether it is the one to say so to the user."""
        ...

    def abort(self, code: int) -> None:
        """End all processes with this exit code."""
        ...

    def wait_at_most(self, seconds: float) -> None:
        """From now on a wait in which nothing comes for so long is an error."""
        ...


class DeviceFabric(Protocol):
    """A `Fabric` whose processes have a GPU each, between whose memories it moves bytes."""

    def begin_on_device(
        self, device: Any, number: int, parts: Mapping[int, Any], room: Mapping[int, Any], called: str
    ) -> None:
        """Begin an exchange of buffers of a device as its work aside of this number; see `Fabric.start`.

        On a device that only notes what it is asked for it is noted, and done whenever that is. Raises UsageError
        where the processes cannot reach each other's GPUs.
        """
        ...


@final
class Alone:
    """One process, which hosts all ranks."""

    process = 0
    processes = 1
    agreed = True
    waited = 0.0
    sent = 0
    hosts: Sequence[str] = ("",)

    def exchange(self, parts: Mapping[int, Array], room: Mapping[int, Array], called: str) -> None:
        """There is nobody to send to."""
        assert not parts and not room, called

    def start(self, parts: Mapping[int, Array], room: Mapping[int, Array], called: str) -> Flight:
        """There is nobody to send to."""
        raise AssertionError(called)

    def watch(self, done: Callable[[], bool], called: str) -> None:
        """Nobody else has a part in anything."""
        raise AssertionError(called)

    def fail(self, error: BaseException) -> bool:
        """There is nobody to tell."""
        return True

    def abort(self, code: int) -> None:
        """There is nobody else to end."""

    def wait_at_most(self, seconds: float) -> None:
        """There is nobody to wait for."""


ALONE = Alone()


@final
class Silent:
    """One process of several that hears nothing of the others: what comes from them is 0. It sends nothing."""

    agreed = True
    waited = 0.0
    sent = 0

    def __init__(self, fabric: Fabric):
        self.process, self.processes, self.hosts = fabric.process, fabric.processes, fabric.hosts

    def exchange(self, parts: Mapping[int, Array], room: Mapping[int, Array], called: str) -> None:
        """Nothing comes."""
        for out in room.values():
            out[...] = 0

    def start(self, parts: Mapping[int, Array], room: Mapping[int, Array], called: str) -> Flight:
        """Nothing comes."""
        self.exchange(parts, room, called)
        return self

    def wait(self) -> None:
        """It is over at once."""

    def watch(self, done: Callable[[], bool], called: str) -> None:
        """Nothing of others is waited for."""

    def begin_on_device(
        self, device: Any, number: int, parts: Mapping[int, Any], room: Mapping[int, Any], called: str
    ) -> None:
        """Nothing comes."""
        device.aside(number, _NOWHERE, *room.values())

    def fail(self, error: BaseException) -> bool:
        """There is nobody to tell."""
        return True

    def abort(self, code: int) -> None:
        """There is nobody else to end."""

    def wait_at_most(self, seconds: float) -> None:
        """There is nobody to wait for."""


class _Nowhere:
    """Work aside that does nothing."""

    sent = 0

    def __call__(self, stream: Any, places: Sequence[tuple[int, int]]) -> None:
        """Nothing comes."""


_NOWHERE = _Nowhere()


_HANDLES: WeakValueDictionary[int, Any] = WeakValueDictionary()
_NUMBERS = count(1)
_LOCK = make_lock()


def handle_of(part: Any) -> int:
    """A number by which an op names a fabric, or who uses it, as a static parameter is to be plain data."""
    with _LOCK:
        found = next((number for number, known in _HANDLES.items() if known is part), None)
        if found is None:
            found = next(_NUMBERS)
            _HANDLES[found] = part
        return found


def held_by(handle: int) -> Any:
    """The object that a number of `handle_of` names."""
    return _HANDLES[handle]


def engine_op(
    name: str,
    operands: tuple[str, ...],
    shape: Callable[..., tuple[TensorType, ...]],
    kernel: Callable[..., tuple[Array, ...]],
    on_device: Callable[..., tuple[Any, ...]] | None = None,
    *,
    outputs: tuple[str, ...] = ("out",),
) -> Primitive:
    """A call between processes or ranks as an op of compiled programs, which no program of a user's makes.

    `on_device` is its entry in the table of kernels of a GPU.
    """
    primitive = Primitive(
        name,
        operands=operands,
        outputs=outputs,
        shape=shape,
        differentiable=False,
        effects={Effect.EXTERNAL},
        flops=no_flops,
    )
    kernels: dict[str, Callable[..., Any]] = {"cpu": kernel}
    if on_device is not None:
        kernels["cuda"] = on_device
    register(name, primitive, kernels, ())
    return primitive


def _shape(token: TensorType, *parts: TensorType, come: Any, **static: Any) -> tuple[TensorType, ...]:
    return (token, *[TensorType((size,), np.dtype(dtype)) for _, size, dtype in come])


def _exchange(token: Array, *parts: Array, fabric: int, to: Any, come: Any, called: str) -> tuple[Array, ...]:
    room = {process: np.empty(size, dtype) for process, size, dtype in come}
    _HANDLES[fabric].exchange(dict(zip(to, map(packed, parts), strict=True)), room, called)
    return (np.array(token), *room.values())


def _on_device(device: Any, parts: Any, fabric: int, to: Any, come: Any, called: str) -> tuple[int, tuple[Any, ...]]:
    """Begin an exchange of buffers of a device: its number, and what it fills."""
    engine = held_by(fabric)
    if not hasattr(engine, "begin_on_device"):
        raise UsageError(
            f"no engine between processes reaches the memory of a GPU here, so {called} cannot be done on {device}"
        )
    room = tuple([device.empty(TensorType((size,), np.dtype(dtype))) for _, size, dtype in come])
    number = next(_NUMBERS)
    from_whom = [process for process, _, _ in come]
    engine.begin_on_device(device, number, dict(zip(to, parts, strict=True)), dict(zip(from_whom, room)), called)
    return number, room


def _exchange_on_device(device: Any, types: Any, token: Any, *parts: Any, **static: Any) -> tuple[Any, ...]:
    number, room = _on_device(device, parts, **static)
    device.joined(number, *parts, *room)
    return (token, *room)


EXCHANGE = engine_op("exchange", ("token", "*parts"), _shape, _exchange, _exchange_on_device, outputs=("token",))
"""Vectors to and from other processes: `to` says to whom each part goes, `come` (process, size, dtype) what comes.

The token of one is an operand of the next, so that no pass can change their order.
"""


_FLYING: dict[int, tuple[Flight, tuple[Array, ...], tuple[Array, ...]]] = {}


def _started(token: TensorType, *parts: TensorType, **static: Any) -> tuple[TensorType, ...]:
    return token, token


def _start(token: Array, *parts: Array, fabric: int, to: Any, come: Any, called: str) -> tuple[Array, ...]:
    # what they stand in may be written over before they are sent
    return begin_exchange(token, *map(np.array, parts), fabric=fabric, to=to, come=come, called=called)


def begin_exchange(token: Array, *parts: Array, fabric: int, to: Any, come: Any, called: str) -> tuple[Array, Array]:
    """`exchange_start` of parts over which nobody writes until it is over."""
    room = tuple([np.empty(size, dtype) for _, size, dtype in come])
    sent = tuple(map(packed, parts))
    processes = [process for process, _, _ in come]
    flight = _HANDLES[fabric].start(dict(zip(to, sent, strict=True)), dict(zip(processes, room)), called)
    number = next(_NUMBERS)
    _FLYING[number] = flight, room, sent
    return token, np.array(number, token.dtype)


_ALOFT: dict[Any, tuple[int, tuple[Any, ...], tuple[Any, ...]]] = {}
"""Exchanges under way between devices, by the memory of the tensor that stands for each, of which nothing is read."""


def _start_on_device(device: Any, types: Any, token: Any, *parts: Any, **static: Any) -> tuple[Any, ...]:
    number, room = _on_device(device, parts, **static)
    flight = device.empty(types[1])
    _ALOFT[flight.memory] = number, parts, room  # which stand where they are until it is over
    return token, flight


EXCHANGE_START = engine_op(
    "exchange_start", ("token", "*parts"), _started, _start, _start_on_device, outputs=("token", "flight")
)
"""The beginning of an `exchange`, which goes on while the program does; the flight is waited for once."""


def _arrived(token: TensorType, flight: TensorType, *, come: Any) -> tuple[TensorType, ...]:
    return (token, *[TensorType((size,), np.dtype(dtype)) for _, size, dtype in come])


def _wait(token: Array, flight: Array, *, come: Any) -> tuple[Array, ...]:
    under_way, room, _ = _FLYING.pop(int(flight))
    under_way.wait()
    return (np.array(token), *room)


def _wait_on_device(device: Any, types: Any, token: Any, flight: Any, *, come: Any) -> tuple[Any, ...]:
    number, parts, room = _ALOFT.pop(flight.memory)
    device.joined(number, *parts, *room)
    return (token, *room)


EXCHANGE_WAIT = engine_op("exchange_wait", ("token", "flight"), _arrived, _wait, _wait_on_device, outputs=("token",))
"""The end of an exchange: the vectors that came."""
