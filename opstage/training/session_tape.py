"""The tape of a session, used by one thread at a time, with refs that users hold outside of any program."""

from __future__ import annotations

from collections.abc import Iterator
from threading import get_ident
from typing import Any, Protocol
from weakref import ref

from typing_extensions import override

from ..forks import make_lock
from ..interpreters.imperative import Imperative
from ..interpreters.tape import Node, Tape
from ..interpreters.tape_record import Record
from ..ops.errors import ProgramError
from ..ops.infix import Infix
from ..ops.primitive import Primitive, Static
from ..ops.splitmix import site_of
from ..ops.tracebacks import called_by_users
from ..ops.types import TensorType
from .refs import Nats, own_node

_FEW = 1024
"""The refs that a tape notes before it looks for those that are gone."""

_claims = make_lock()
"""Held while a thread claims a tape without an owner."""


class Forgetful(Protocol):
    """An object of a tape in the hands of users, which drops its values when the tape ends."""

    def forget(self) -> None: ...


_REFLECTED = {
    "add": "__radd__",
    "subtract": "__rsub__",
    "multiply": "__rmul__",
    "divide": "__rtruediv__",
    "floor_divide": "__rfloordiv__",
    "remainder": "__rmod__",
    "divmod": "__rdivmod__",
    "power": "__rpow__",
    "matmul": "__rmatmul__",
    "less": "__gt__",
    "less_equal": "__ge__",
    "greater": "__lt__",
    "greater_equal": "__le__",
    "equal": "__eq__",
    "not_equal": "__ne__",
    "bitwise_and": "__rand__",
    "bitwise_or": "__ror__",
    "bitwise_xor": "__rxor__",
}
"""By NumPy's name of an operator, the method of its second operand."""

_REDUCTIONS = {"add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min"}


class SessionRef(Node[Any]):
    """A ref of a session's tape. Errors of its operators point to the user's line, since no program surrounds it."""

    __slots__ = ("__weakref__",)

    def __init__(self, value: Any, ops: Any, record: Record[Any] | None = None, slot: int = 0):
        self.value = value
        self.ops = ops
        self.record = record
        self.slot = slot
        ops.note(self)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **more: Any) -> Any:
        """Leave `array * ref` to the operators of the ref. Raises TypeError, with the op, for NumPy's functions."""
        operator = _REFLECTED.get(ufunc.__name__)
        if operator and method == "__call__" and not more and not isinstance(inputs[0], Node):
            return getattr(self, operator)(inputs[0])
        from ..ops.foreign_calls import op_for

        name = _REDUCTIONS.get(ufunc.__name__, ufunc.__name__) if method == "reduce" else ufunc.__name__
        raise TypeError(f"np.{name} takes no refs: {op_for(name, 'the session')}")

    def forget(self) -> None:
        """Drop the value and all that the backward pass would read; shape and dtype stay."""
        self.value, self.record = TensorType(self.shape, self.dtype), None


class SessionTape(Tape[Any]):
    """A tape owned by the first thread that uses it, until it is `free`.

    What users hold of it is noted weakly, so that `close` returns the memory of values that they still refer to.
    """

    __slots__ = ("_base", "_thread", "_noted", "_most")
    ref_type = SessionRef

    def __init__(self, base: Imperative[Any]):
        """Create the tape, owned by the calling thread."""
        super().__init__(base)
        self._base = base
        self._thread = get_ident()
        self._noted: list[ref[Forgetful]] = []
        self._most = _FEW

    def note(self, held: Forgetful) -> None:
        """Have `close` call `held.forget()`."""
        self._noted.append(ref(held))
        if len(self._noted) > self._most:
            self._noted = [each for each in self._noted if each() is not None]
            self._most = max(_FEW, 2 * len(self._noted))

    def held(self) -> Iterator[Forgetful]:
        """Everything that was noted and still exists, oldest first."""
        return (held for each in self._noted if (held := each()) is not None)

    def leaves(self) -> list[SessionRef]:
        """The refs that take a gradient and are not the result of an op."""
        refs = [held for held in self.held() if type(held) is SessionRef]
        return [each for each in refs if each.record is not None and each.record.primitive is None]

    @override
    def close(self, reason: str) -> None:
        super().close(reason)
        for held in self.held():
            held.forget()

    def free(self) -> None:
        """Release the tape to the next thread that uses it."""
        self._thread = 0

    def take(self) -> None:
        """Claim the tape; raise a ProgramError if another thread owns it, since their ops would mix silently."""
        thread = get_ident()
        if self._thread != thread:
            with _claims:
                if self._thread:
                    raise ProgramError(
                        "this session is used by two threads, whose ops would mix on one tape; give each thread a "
                        "session of its own, or hand it over after reset_tape()"
                    )
                self._thread = thread

    def _take_if_live(self) -> None:
        """Claim the tape for an op. An ended tape raises its own error, whichever thread owned it last."""
        if self.closed:
            raise ProgramError(self.closed)
        self.take()

    @override
    def adopt(self, ref: Any, /) -> Node[Any]:
        if isinstance(ref, Nats) and ref.ops is self:
            return self.wrap(ref.staged(self._base))
        return own_node(self, ref, "an op")

    @override
    def bind1(self, primitive: Primitive, x: Node[Any], /) -> Node[Any]:
        if self._thread != get_ident():
            self._take_if_live()
        return super().bind1(primitive, x)

    @override
    def bind2(self, primitive: Primitive, x: Node[Any], y: Node[Any], /) -> Node[Any]:
        if self._thread != get_ident():
            self._take_if_live()
        return super().bind2(primitive, x, y)

    @override
    def bind(self, primitive: Primitive, refs: tuple[Node[Any], ...], static: Static, /) -> tuple[Node[Any], ...]:
        if self._thread != get_ident():
            self._take_if_live()
        try:
            return super().bind(primitive, refs, static)
        except BaseException:
            self._undraw(static)
            self._base.failed()
            raise

    @override
    def const(self, value: Any, /, *, dtype: Any = None) -> Node[Any]:
        self.take()
        return super().const(value, dtype=dtype)

    def _undraw(self, static: Static) -> None:
        """Return the site of a failed draw to the next draw."""
        region = self.cursor.region
        if "site" in static and region.draws and static["site"] == site_of(region.path, region.draws - 1):
            region.draws -= 1


for _name, _operator in vars(Infix).items():
    if callable(_operator) and _name.startswith("__") and _name not in ("__hash__", "__repr__"):
        setattr(SessionRef, _name, called_by_users(_operator))
