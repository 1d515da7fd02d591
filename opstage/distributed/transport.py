"""The transport between processes as seen by a mesh, and the ops by which programs use it.

A transport only moves bytes: sums are computed here in the order of the tree, so a transport cannot change bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, Protocol, final
from weakref import WeakValueDictionary

import numpy as np
from typing_extensions import override

from ..ops.catalogue import register
from ..ops.errors import UsageError
from ..ops.host_arrays import Array, packed
from ..ops.primitive import Effect, Primitive, no_flops
from ..ops.types import TensorType
from ..threads import make_lock


class PendingExchange(Protocol):
    """A pending exchange."""

    def wait(self) -> None:
        """Wait until everything has arrived. Raises the errors of `Transport.exchange`."""
        ...

    def abandon(self) -> None:
        """Leave it, as a run does that ends before."""
        ...


class Transport(Protocol):
    """The processes that host a mesh, with equally many ranks each, in the order of ranks.

    process     the number of this process, of `processes`
    agreed      whether the processes have compared what they are about to run
    waited      total seconds that this process has waited for others
    sent        total bytes that it has sent, without headers
    hosts       the machine of each process
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
        """Send `parts[p]` to each process p, and fill `room[p]` with what p sends to this process.

        All processes make the same exchanges in the same order; `called` describes the exchange, equally on all. Raises
        RankError if another process has failed, died or hung, or is in an exchange with another name.
        """
        ...

    def start(self, parts: Mapping[int, Array], room: Mapping[int, Array], called: str) -> PendingExchange:
        """Start an exchange, which continues while this process computes; `parts` must not be overwritten until it
        ends.

        All processes start exchanges in the same order. They may wait for them in another order.
        """
        ...

    def watch(self, done: Callable[[], bool], called: str) -> None:
        """Return once `done()` is true for work that involves others. Raises the errors of `exchange`."""
        ...

    def leave_run(self, error: BaseException) -> None:
        """Note that a run of a program, or a training step, ends here by an error, after which the caller may continue.

        An exchange with a process that had fewer is a RankError from now on: the two would sum what belongs
        to different steps. After a RankError every exchange raises it again.
        """
        ...

    def fail(self, error: BaseException) -> bool:
        """Notify all others that this process fails, before it exits; return whether it should report the error to the
        user."""
        ...

    def abort(self, code: int) -> None:
        """Terminate all processes with this exit code."""
        ...

    def wait_at_most(self, seconds: float) -> None:
        """Set the timeout after which waiting without any progress is an error."""
        ...


class RepeatedExchange(PendingExchange, Protocol):
    """An exchange of vectors that stand where they do, which is made again and again."""

    def start(self, parts: Mapping[int, Array], room: Mapping[int, Array]) -> None:
        """Start it; see `Transport.start`."""
        ...

    def free(self) -> None:
        """Drop what it was prepared with."""
        ...


class _FreshExchange:
    """An exchange that is created for each time."""

    def __init__(self, transport: Transport, called: str):
        self._transport, self._called = transport, called

    def start(self, parts: Mapping[int, Array], room: Mapping[int, Array]) -> None:
        """See `RepeatedExchange.start`."""
        pending = self._transport.start(parts, room, self._called)
        self.wait, self.abandon = pending.wait, pending.abandon

    def free(self) -> None:
        """Do nothing, since nothing was prepared."""

    wait: Callable[[], None]
    abandon: Callable[[], None]


def prepared(
    transport: Transport, parts: Mapping[int, Array], room: Mapping[int, Array], called: str
) -> RepeatedExchange:
    """Return an exchange of vectors that stand where these do."""
    prepare: Callable[..., RepeatedExchange] | None = getattr(transport, "prepared", None)
    return _FreshExchange(transport, called) if prepare is None else prepare(parts, room, called)


class DeviceTransport(Protocol):
    """A `Transport` whose processes have a GPU each, and which moves bytes between GPU memories."""

    def begin_on_device(
        self, device: Any, number: int, parts: Mapping[int, Any], room: Mapping[int, Any], called: str
    ) -> None:
        """Start an exchange of device buffers as side work with this number; see `Transport.start`.

        On a recording device it is recorded, and runs on replay. Raises UsageError if the processes cannot reach each
        other's GPUs.
        """
        ...


class Alone:
    """A single process, which hosts all ranks: it has nobody to send to, wait for or notify."""

    process = 0
    processes = 1
    agreed = True
    waited = 0.0
    sent = 0
    hosts: Sequence[str] = ("",)

    def exchange(self, parts: Mapping[int, Array], room: Mapping[int, Array], called: str) -> None:
        assert not parts and not room, called

    def start(self, parts: Mapping[int, Array], room: Mapping[int, Array], called: str) -> PendingExchange:
        raise AssertionError(called)

    def watch(self, done: Callable[[], bool], called: str) -> None:
        """Do nothing."""

    def leave_run(self, error: BaseException) -> None:
        """Do nothing."""

    def fail(self, error: BaseException) -> bool:
        return True

    def abort(self, code: int) -> None:
        """Do nothing."""

    def wait_at_most(self, seconds: float) -> None:
        """Do nothing."""


ONE_PROCESS = Alone()


@final
class Silent(Alone):
    """One of several processes, cut off from the others: it sends nothing and receives zeros."""

    def __init__(self, transport: Transport):
        self.process, self.processes, self.hosts = transport.process, transport.processes, transport.hosts

    @override
    def exchange(self, parts: Mapping[int, Array], room: Mapping[int, Array], called: str) -> None:
        for out in room.values():
            out[...] = 0

    @override
    def start(self, parts: Mapping[int, Array], room: Mapping[int, Array], called: str) -> PendingExchange:
        self.exchange(parts, room, called)
        return self

    def wait(self) -> None:
        """Do nothing, since the exchange is complete."""

    def abandon(self) -> None:
        """Do nothing, since the exchange is complete."""

    def begin_on_device(
        self, device: Any, number: int, parts: Mapping[int, Any], room: Mapping[int, Any], called: str
    ) -> None:
        device.aside(number, _NOWHERE, *room.values())


class _Nowhere:
    """Side work that does nothing."""

    sent = 0

    def __call__(self, stream: Any, places: Sequence[tuple[int, int]]) -> None:
        """Do nothing."""


_NOWHERE = _Nowhere()


_HANDLES: WeakValueDictionary[int, Any] = WeakValueDictionary()
_NUMBERS = count(1)
_LOCK = make_lock()


def get_handle(part: Any) -> int:
    """Return a number for a transport or an object that uses one, since static parameters are plain data."""
    with _LOCK:
        found = next((number for number, known in _HANDLES.items() if known is part), None)
        if found is None:
            found = next(_NUMBERS)
            _HANDLES[found] = part
        return found


def get_object(handle: int) -> Any:
    """Return the object of a number from `get_handle`."""
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
    """Return an op for communication in compiled programs, which users' programs cannot create.

    `on_device` is its kernel for a GPU.
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


def _exchange(token: Array, *parts: Array, transport: int, to: Any, come: Any, called: str) -> tuple[Array, ...]:
    room = {process: np.empty(size, dtype) for process, size, dtype in come}
    _HANDLES[transport].exchange(dict(zip(to, map(packed, parts), strict=True)), room, called)
    return (np.array(token), *room.values())


def _on_device(device: Any, parts: Any, transport: int, to: Any, come: Any, called: str) -> tuple[int, tuple[Any, ...]]:
    """Start an exchange of device buffers; return its number and the buffers that it fills."""
    engine = get_object(transport)
    if not hasattr(engine, "begin_on_device"):
        raise UsageError(
            f"{called} is not supported on {device}: the engine between processes does not reach the memory of a GPU "
            "here. Install opstage[nccl], or compute on the CPU"
        )
    room = tuple([device.empty(TensorType((size,), np.dtype(dtype))) for _, size, dtype in come])
    number = next(_NUMBERS)
    from_whom = [process for process, _, _ in come]
    engine.begin_on_device(device, number, dict(zip(to, parts, strict=True)), dict(zip(from_whom, room)), called)
    return number, room


def _exchange_on_device(device: Any, types: Any, token: Any, *parts: Any, **static: Any) -> tuple[Any, ...]:
    number, room = _on_device(device, parts, **static)
    device.join(number, *parts, *room)
    return (token, *room)


EXCHANGE = engine_op("exchange", ("token", "*parts"), _shape, _exchange, _exchange_on_device, outputs=("token",))
"""Exchanges vectors with other processes: `to` has the receiver of each part, `come` the incoming (process, size,
dtype).

The token of one exchange is an operand of the next, so that passes cannot reorder them.
"""


_PENDING: dict[int, tuple[PendingExchange, tuple[Array, ...], tuple[Array, ...]]] = {}


def _started(token: TensorType, *parts: TensorType, **static: Any) -> tuple[TensorType, ...]:
    return token, token


def _start(token: Array, *parts: Array, transport: int, to: Any, come: Any, called: str) -> tuple[Array, ...]:
    # copied, since their memory may be overwritten before they are sent
    return begin_exchange(token, *map(np.array, parts), transport=transport, to=to, come=come, called=called)


def begin_exchange(token: Array, *parts: Array, transport: int, to: Any, come: Any, called: str) -> tuple[Array, Array]:
    """`exchange_start` on parts that are not overwritten until it ends."""
    room = tuple([np.empty(size, dtype) for _, size, dtype in come])
    sent = tuple(map(packed, parts))
    processes = [process for process, _, _ in come]
    pending = _HANDLES[transport].start(dict(zip(to, sent, strict=True)), dict(zip(processes, room)), called)
    number = next(_NUMBERS)
    _PENDING[number] = pending, room, sent
    return token, np.array(number, token.dtype)


_PENDING_ON_DEVICE: dict[Any, tuple[int, tuple[Any, ...], tuple[Any, ...]]] = {}
"""Pending exchanges between devices, by the memory of the placeholder tensor of each, which is never read."""


def _start_on_device(device: Any, types: Any, token: Any, *parts: Any, **static: Any) -> tuple[Any, ...]:
    number, room = _on_device(device, parts, **static)
    pending = device.empty(types[1])
    _PENDING_ON_DEVICE[pending.memory] = number, parts, room  # kept alive until it ends
    return token, pending


EXCHANGE_START = engine_op(
    "exchange_start", ("token", "*parts"), _started, _start, _start_on_device, outputs=("token", "pending")
)
"""Starts an `exchange` that continues while the program runs; the pending exchange is awaited once."""


def _arrived(token: TensorType, pending: TensorType, *, come: Any) -> tuple[TensorType, ...]:
    return (token, *[TensorType((size,), np.dtype(dtype)) for _, size, dtype in come])


def _wait(token: Array, pending: Array, *, come: Any) -> tuple[Array, ...]:
    exchange, room, _ = _PENDING.pop(int(pending))
    exchange.wait()
    return (np.array(token), *room)


def _wait_on_device(device: Any, types: Any, token: Any, pending: Any, *, come: Any) -> tuple[Any, ...]:
    number, parts, room = _PENDING_ON_DEVICE.pop(pending.memory)
    device.join(number, *parts, *room)
    return (token, *room)


EXCHANGE_WAIT = engine_op("exchange_wait", ("token", "pending"), _arrived, _wait, _wait_on_device, outputs=("token",))
"""Ends an exchange and returns the received vectors."""
