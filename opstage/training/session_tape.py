"""The tape of a session, used by one thread at a time, the refs on it that users hold outside of any program, and its
gradients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from threading import get_ident
from typing import Any, Protocol, final
from weakref import ref

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from ..api import owned
from ..ops.dims import require_equal
from ..ops.dispatch import Quietly
from ..ops.errors import DtypeError, OpstageError, ProgramError, ShapeError, UsageError, a_type
from ..ops.hints import Renamed
from ..ops.infix import Infix
from ..ops.primitive import Primitive, Static
from ..ops.splitmix import draw_site
from ..ops.static_arguments import plain
from ..ops.tracebacks import called_by_users
from ..ops.trees import no_ref
from ..ops.types import INT64, DType, TensorType, dtype_name, is_float, show_shape
from ..threads import make_lock
from ..transforms.tape import Node, Record, Tape
from ..transforms.transparent import Imperative, own_array
from .param import Param

# Refs: a tensor of a session's live tape, or a handle of natural numbers ----------------------------------------------
#
# Natural numbers are indices and labels; they have no gradient and may be replaced between ops.

Words = npt.NDArray[np.int64]
_LARGEST = 2**63 - 1


class Nats:
    """A handle of natural numbers. Ops after `put` read the new numbers; ops already computed keep the old."""

    __slots__ = ("ops", "_numbers", "_staged", "__weakref__")

    def __init__(self, tape: Tape[Any], numbers: Words):
        self.ops = tape
        self._numbers = numbers
        self._staged: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self._numbers.shape

    @property
    def dtype(self) -> DType:
        return INT64

    @property
    def numbers(self) -> Words:
        """Return the current numbers, as a copy."""
        return self._numbers.copy()

    def put(self, numbers: Words) -> None:
        """Replace the numbers; their count is fixed."""
        if numbers.shape != self.shape:
            raise ShapeError(
                f"it holds {len(self._numbers)} numbers but {len(numbers)} were given; its length is fixed: make "
                "another with nat_vec",
                op="set_nat_vec",
            )
        self._numbers, self._staged = numbers, None

    def forget(self) -> None:
        """Drop the copy on the interpreter."""
        self._staged = None

    def staged(self, base: Imperative[Any]) -> Any:
        """Return the numbers as a ref of the session's base interpreter, put there once until they change."""
        if self._staged is None:
            self._staged = base.live(lambda: self._numbers)
        return self._staged


class NatRef(Nats):
    """One natural number; an op reads it as an integer scalar."""

    __slots__ = ()


class NatVecRef(Nats):
    """A vector of natural numbers of fixed length; an op reads it as an integer vector."""

    __slots__ = ()


def natural(op: str, value: Any) -> Words:
    """Return `value` as one natural number, int64; raises UsageError for anything else."""
    value = plain(value)
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and 0 <= value <= _LARGEST:
        return np.array(value, dtype=np.int64)
    raise UsageError(f"{op} takes a natural number, an integer from 0 to 2^63 - 1, but got {value!r}")


def naturals(op: str, values: Any) -> Words:
    """Return `values` as a vector of natural numbers, int64; raises UsageError, with the entry, for anything else."""
    entries = list(values) if isinstance(values, (list, tuple, range, np.ndarray)) and np.ndim(values) == 1 else None
    if entries is None:
        raise UsageError(f"{op} takes a vector of natural numbers but got {values!r}")
    for i, entry in enumerate(entries):
        if not isinstance(entry, (int, np.integer)) or isinstance(entry, bool) or not 0 <= entry <= _LARGEST:
            raise UsageError(f"{op} takes natural numbers, integers from 0 to 2^63 - 1, but entry {i} is {entry!r}")
    return np.array(entries, dtype=np.int64)


def own_node(tape: Tape[Any], ref: Any, op: str) -> Node[Any]:
    """Return `ref` if it is a tensor of `tape` and the tape is live; else raise a ProgramError that says what it is."""
    owner: Any = getattr(ref, "ops", None)
    if getattr(owner, "closed", None):
        raise ProgramError(owner.closed)
    if isinstance(ref, Node):
        if owner is tape:
            return ref
        if owner.depth > tape.depth:
            raise ProgramError("a ref of an inner derivative was used outside of it; return it from the inner function")
        raise ProgramError(f"{op} got a ref of another session; a session computes with its own refs alone")
    if isinstance(ref, Nats):
        if owner is not tape:
            raise ProgramError(f"{op} got natural numbers of another session; a session reads its own alone")
        raise ProgramError(f"{op} takes a tensor but got natural numbers, which get_nat and get_nat_vec read")
    if isinstance(ref, Param):
        raise ProgramError(f"{op} got {ref} itself; session.use(param) gives its ref on this tape")
    raise no_ref(ref, "make one with session.input(…), leaf(…) or const(…)", op)


def own_nats(tape: Tape[Any], ref: Any, kind: type[Nats], op: str) -> Nats:
    """Return `ref` if it holds natural numbers of this kind on `tape`. Raises ProgramError for anything else."""
    if isinstance(ref, kind) and ref.ops is tape:
        return ref
    if isinstance(ref, Nats) and ref.ops is tape:
        raise ProgramError(f"{op} takes a {kind.__name__} but got {a_type(ref)}")
    own_node(tape, ref, op)
    raise ProgramError(f"{op} takes a {kind.__name__} but got the ref of a tensor")


def require_shape(op: str, what: str, shape: Sequence[Any], expected: Sequence[Any]) -> None:
    """Raise a ShapeError of `op` if `what` has another shape than expected."""
    message = f"{what} is {show_shape(tuple(shape))} where {show_shape(tuple(expected))} is expected"
    if len(shape) != len(expected):
        raise ShapeError(message, op=op)
    for a, b in zip(shape, expected):
        try:
            require_equal(a, b, lambda: message)
        except ShapeError as error:
            error.op = op
            raise


# The gradients of one backward pass -----------------------------------------------------------------------------------


@final
class Gradients(Renamed, Mapping[Any, Any]):
    """The gradient of a result for refs and parameters: `gradients[ref]`.

    It is a mapping whose keys are the parameters used on the tape that take a gradient, in the order of their first
    use, and the leaves that still exist. With `dense`, results of ops can be read as well.

    dense    whether every ref of the tape has one, or only leaves and parameters
    moment   the time of the backward pass: numbers set later are ignored
    """

    __slots__ = ("dense", "moment", "_tape", "_base", "_found", "_used", "_leaves", "__weakref__")

    def __init__(
        self,
        tape: Tape[Any],
        base: Imperative[Any],
        found: dict[Record[Any], list[Any]],
        used: Mapping[Param, Node[Any]],
        leaves: Iterable[Node[Any]],
        *,
        dense: bool,
    ):
        self.dense = dense
        self.moment = base.moment()
        self._tape = tape
        self._base = base
        self._found = found
        self._used = used
        of_parameters = set(used.values())
        self._leaves = [ref(leaf) for leaf in leaves if leaf not in of_parameters]

    def __iter__(self) -> Iterator[Param | Node[Any]]:
        if self._tape.closed:
            raise ProgramError(self._tape.closed)
        trained = [param for param, node in self._used.items() if node.record is not None]
        return iter([*trained, *[leaf for each in self._leaves if (leaf := each()) is not None]])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, of: object) -> bool:
        """Return whether `gradients[of]` can be read."""
        try:
            self.cotangent(self._node(of))
        except OpstageError:
            return False
        return True

    @override
    def get(self, of: Any, default: Any = None) -> Any:
        try:
            return self[of]
        except OpstageError:
            return default

    __eq__, __hash__ = object.__eq__, object.__hash__  # a mapping would compare arrays

    def __getitem__(self, of: Node[Any] | Param) -> Any:
        """Return an array that the caller owns, shaped like `of`; zeros if the result does not depend on it.

        Raises ProgramError for an intermediate ref after a sparse pass, for a ref of another session and for a
        parameter that was not used; DtypeError for integers and booleans, which have no gradient.
        """
        (value,) = self._base.fetch([self.cotangent(self._node(of))], self.moment)
        return owned(self._base.store.get(value))

    def cotangent(self, node: Node[Any]) -> Any:
        """Return the gradient as a value of the base interpreter."""
        if not is_float(node.dtype):
            raise DtypeError(f"the ref is {dtype_name(node.dtype)}: integers and booleans have no gradient", op="grad")
        record = node.record
        if record is not None:
            if not self.dense and record.primitive is not None:
                raise ProgramError(
                    "backward(…, dense=False) keeps the gradients of leaves and parameters alone, and this ref is the "
                    "result of an op; call backward(…, dense=True)"
                )
            cotangents = self._found.get(record)
            if cotangents is not None and cotangents[node.slot] is not None:
                return cotangents[node.slot]
        with Quietly(self._base.cursor):
            return self._base.full(shape=node.shape, value=0.0, dtype=node.dtype)

    def forget(self) -> None:
        """Drop the gradients and the values saved for the pass, which any ref still held would keep alive."""
        for record in self._found:
            record.forget()
        self._found.clear()
        self.moment = {}

    def _node(self, of: Any) -> Node[Any]:
        if isinstance(of, Param):
            if of not in self._used:
                raise ProgramError(f"{of} was not used on this tape, so it does not have a gradient")
            of = self._used[of]
        return own_node(self._tape, of, "grad")


def aligned(base: Imperative[Any], value: Any, node: Node[Any], op: str, what: str) -> Any:
    """Return a seed or tangent of a node as a value of `base`, with the node's shape and dtype."""
    array = own_array(value)
    if array.dtype.kind not in "fO":
        raise DtypeError(f"{what} must be float but is {array.dtype}", op=op)
    require_shape(op, what, tuple(array.shape), tuple(node.shape))
    return base.lift(base.store.const(array, dtype=node.dtype))


_FEW = 1024
"""The refs that a tape notes before it looks for those that are gone."""

_claims = make_lock()
"""Held while a thread claims a tape without an owner."""


# The tape -------------------------------------------------------------------------------------------------------------


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
        from ..ops.hints import suggest_op

        name = _REDUCTIONS.get(ufunc.__name__, ufunc.__name__) if method == "reduce" else ufunc.__name__
        raise TypeError(f"np.{name} does not support refs: {suggest_op(name, 'the session')}")

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

    def live_refs(self) -> Iterator[Forgetful]:
        """Everything that was noted and still exists, oldest first."""
        return (held for each in self._noted if (held := each()) is not None)

    def leaves(self) -> list[SessionRef]:
        """Return the refs that take a gradient and are not the result of an op."""
        refs = [held for held in self.live_refs() if type(held) is SessionRef]
        return [each for each in refs if each.record is not None and each.record.primitive is None]

    @override
    def close(self, reason: str) -> None:
        super().close(reason)
        for held in self.live_refs():
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
                        "this session is used by two threads, whose ops would mix on one tape; give each thread its "
                        "own session, or hand it over after reset_tape()"
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
        if "site" in static and region.draws and static["site"] == draw_site(region.path, region.draws - 1):
            region.draws -= 1


for _name, _operator in vars(Infix).items():
    if callable(_operator) and _name.startswith("__") and _name not in ("__hash__", "__repr__"):
        setattr(SessionRef, _name, called_by_users(_operator))
