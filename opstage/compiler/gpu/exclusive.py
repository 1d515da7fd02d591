"""Exclusive use of a device: by one thread at a time, and only in the process that opened it.

A device has one stream, one pinned buffer, one set of matmul plans, and one current op. So every method that uses them
holds the device's lock from its first to its last driver call. An interpreter holds it for a whole op, and a compiled
program for a whole run, so that state set before a launch belongs to that launch and a capture contains no other work.
The lock is reentrant.

Garbage may be collected in any thread at any time, so a finalizer never waits for the lock.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar, cast, final

from ...ops.errors import DeviceError
from ...threads import tell_in_child
from .machine import inherited

if TYPE_CHECKING:
    from .device import Device


F = TypeVar("F", bound=Callable[..., Any])

_inherited = False  # whether a device was in use when this process was forked


def alone(method: F) -> F:
    """Decorate a method of a device to hold its lock."""

    @wraps(method)
    def locked(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self.lock:
            return method(self, *args, **kwargs)

    return cast(F, locked)


@final
class Inherited:
    """The lock of a device in a process forked from the one that opened it: acquiring it raises."""

    def __enter__(self) -> NoReturn:
        raise _forked()

    def __exit__(self, *_: object) -> None:
        """Do nothing: the lock is never acquired."""


Lock: TypeAlias = AbstractContextManager[object]


def opened(device: Device) -> None:
    """Mark a device as owned by this process; using it in a forked child raises."""
    tell_in_child(device, _inherit)


def _inherit(device: Device) -> None:
    global _inherited
    _inherited, device.lock = True, Inherited()


def require_own_process() -> None:
    """Raise DeviceError in a process forked from one that used CUDA."""
    if _inherited or inherited():
        raise _forked()


def _forked() -> DeviceError:
    return DeviceError(
        "this process was forked from one that uses CUDA, and a GPU does not go along with a fork: nothing of it can "
        "be read, written or computed here. Start processes that use a GPU anew, with "
        "multiprocessing.get_context('spawn'), or fork before the first use of device 'cuda'",
        lost=True,
    )
