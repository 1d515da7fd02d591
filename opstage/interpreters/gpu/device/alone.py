"""Who may work with a device: one thread at a time, and only of the process that opened it.

A device is one stream, one pinned memory, one set of plans of products, and the op it works for. So
every method that touches them holds the device's lock from the first of its calls of the driver to the last. An
interpreter holds it for a whole op, and a compiled program for a whole run, so that what is set before a launch is that
launch's own and a capture takes in nobody else's work. Whoever holds it may ask for it again.

What is collected as garbage may be so in any thread at any moment, so a finalizer never waits for the lock.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar, cast, final

from ....forks import tell_in_child
from ....ops.errors import DeviceError
from ...gpus import inherited

if TYPE_CHECKING:
    from .interface import Device

F = TypeVar("F", bound=Callable[..., Any])

_inherited = False  # whether a device was in use when this process was forked


def alone(method: F) -> F:
    """A method of a device that holds its lock."""

    @wraps(method)
    def locked(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self.lock:
            return method(self, *args, **kwargs)

    return cast(F, locked)


@final
class Inherited:
    """The lock of a device in a process that was forked from the one that opened it: nobody gets it."""

    def __enter__(self) -> NoReturn:
        raise _forked()

    def __exit__(self, *_: object) -> None:
        """Nobody has it."""


Lock: TypeAlias = AbstractContextManager[object]


def opened(device: Device) -> None:
    """A device that is this process's own; children that it forks get an error from it."""
    tell_in_child(device, _inherit)


def _inherit(device: Device) -> None:
    global _inherited
    _inherited, device.lock = True, Inherited()


def require_own_process() -> None:
    """Raises DeviceError in a process that was forked from one which used CUDA."""
    if _inherited or inherited():
        raise _forked()


def _forked() -> DeviceError:
    return DeviceError(
        "this process was forked from one that uses CUDA, and a GPU does not go along with a fork: nothing of it can "
        "be read, written or computed here. Start processes that use a GPU anew, with "
        "multiprocessing.get_context('spawn'), or fork before the first use of device 'cuda'",
        lost=True,
    )
