"""`Param`: a trainable tensor that outlives tapes and runs, on the host and on at most one interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, final

import numpy as np
import numpy.typing as npt

from ..init import Placement
from ..ops.array_conversion import as_numpy
from ..ops.errors import DtypeError, OpstageError, ShapeError, UsageError
from ..ops.hints import Renamed
from ..ops.host_arrays import as_array
from ..ops.tied_parameters import identified
from ..ops.types import FLOAT32, FLOAT64, DType, as_dtype, dtype_name, is_float, show_shape
from ..threads import holding
from ..transforms.interpreter import BaseInterpreter
from .commit import Commit, SharedLock
from .sharding import DATA, fetch_lazily, fetch_whole, put_shards, shard_shape
from .snapshot import Unfetched

Array = npt.NDArray[Any]

_NOBODYS = SharedLock()
"""The lock of parameters that no trainer has; threads share those only if they mean to."""


class _Value:
    """One version of a parameter's value, wherever it is stored.

    first     how to create it, while it is stored nowhere
    host      the host array; None if only an interpreter has the value
    mirror    an interpreter, and the value there
    seen      whether another reference to the array may exist
    """

    __slots__ = ("version", "first", "host", "mirror", "seen")

    def __init__(
        self,
        version: int,
        host: Array | None = None,
        mirror: tuple[BaseInterpreter[Any], Any] | None = None,
        first: Placement | None = None,
        seen: bool = False,
    ):
        self.version = version
        self.host = host
        self.mirror = mirror
        self.first = first
        self.seen = seen

    @classmethod
    def of(cls, version: int, value: Array | Placement) -> _Value:
        """Return a version that is on the host, or nowhere yet."""
        return cls(version, first=value) if isinstance(value, Placement) else cls(version, value)


@identified
@final
class Param(Renamed):
    """A value that training changes, whether it takes a gradient, and a name for messages.

    It is one parameter wherever it is: at two places of a tree it ties them, see `ops.tied_parameters`.

    The value stands on the host, and as a *mirror* on the interpreter that used it last: a training loop works on the
    mirror alone, and the host copy is made when someone asks for `value`, and given up when the mirror is newer. A new
    value replaces the old one, so the old one never changes; only a mirror that nobody else
    has seen is updated in place (`alone`).

    Raises:
        UsageError: values that are not numbers; no such dtype.
    """

    __slots__ = ("name", "shape", "dtype", "_requires_grad", "_now", "lock", "__weakref__")

    def __init__(
        self, value: Any, *, name: str | None = None, requires_grad: bool = True, dtype: str | DType | None = None
    ):
        """`value` is copied; floats are cast to `dtype` (None: as they come), integers and booleans keep theirs.

        Raises UsageError for what is not numeric, and DtypeError for integers with `requires_grad`.
        """
        self.name = name
        host = _owned(value, None if dtype is None else as_dtype(dtype), self)
        self._begin(host, host.shape, host.dtype, requires_grad)

    @classmethod
    def planned(
        cls, first: Placement, *, dtype: str | DType = "float32", name: str | None = None, requires_grad: bool = True
    ) -> Param:
        """Return a parameter whose first value is created on the interpreter that first uses it, without a host
        array."""
        param = cls.__new__(cls)
        param.name = name
        param._begin(first, first.shape, as_dtype(dtype), requires_grad)
        return param

    def _begin(self, value: Array | Placement, shape: tuple[int, ...], dtype: DType, requires_grad: bool) -> None:
        self.shape = shape
        self.dtype = dtype
        self.lock: SharedLock | None = None  # shared by all trainers and sessions that have used it
        self._now = _Value.of(0, value)
        self.requires_grad = requires_grad

    # Flags and identity ---------------------------------------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        """Return whether it has a gradient and is updated; a frozen parameter never changes."""
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, wanted: bool) -> None:
        if not isinstance(wanted, (bool, np.bool_)):
            raise UsageError(f"{self}: requires_grad must be a bool but is {wanted!r}")
        if wanted and not is_float(self.dtype):
            raise DtypeError(
                f"{self} holds integers or booleans, which take no gradient; give floats, or requires_grad=False",
                op="Param",
            )
        self._requires_grad = bool(wanted)

    @property
    def version(self) -> int:
        """Return how often the value has been replaced."""
        return self._now.version

    def __str__(self) -> str:
        return f"parameter {self.name}" if self.name else f"parameter of shape {show_shape(self.shape)}"

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies, shallow or deep, and unpickled parameters are independent and share no memory with this one."""
        return _copied, (np.array(self.value), self.name, self._requires_grad)

    def __repr__(self) -> str:
        name = f" {self.name}" if self.name else ""
        frozen = "" if self._requires_grad else ", frozen"
        return f"<Param{name} {show_shape(self.shape)} {dtype_name(self.dtype)}{frozen}>"

    # On the host ----------------------------------------------------------------------------------------------------

    @property
    def value(self) -> Array:
        """Return the current value, a read-only array that later steps do not change. It is fetched first if needed."""
        return holding([(self.lock or _NOBODYS).lock], self._view)

    def _view(self) -> Array:
        now = self._now
        now.seen = True
        view = self._synchronised(now).view()
        view.flags.writeable = False
        return view

    def unfetched(self) -> Any:
        """Return the current value, fetched to the host whenever it is read and not kept. If several processes host
        ranks with parts of it, all of them must read it together."""
        now = self._now

        def stands() -> bool:
            return self._now is now

        if now.host is None and now.mirror is not None:
            return fetch_lazily(*now.mirror, self.shape, self.dtype, stands)

        def fetch() -> Array:
            return self._synchronised(now) if now.first is None else now.first.materialise(self.dtype)

        return Unfetched(self.shape, self.dtype, fetch, stands)

    def set(self, value: Any) -> None:
        """Replace the value by one of the same shape, cast to this dtype; any mirror is dropped."""
        host = self.checked(value)
        holding([(self.lock or _NOBODYS).lock], self._replace, host)

    def _replace(self, host: Array) -> None:
        self._now = _Value(self._now.version + 1, host)

    def prepare(self, commit: Commit, value: Array | Placement) -> None:
        """Add what `set` does to `commit`. `value` must come from `checked`; or is how to create the value, on the
        interpreter that uses it next."""
        commit.set(self, "_now", _Value.of(self._now.version + 1, value))

    def checked(self, value: Any) -> Array:
        """Return the array that `set(value)` would store: a copy of the right dtype. Changes nothing.

        Integers are accepted as floats. Raises ShapeError for another shape and DtypeError for a cast that changes
        meaning: from floats to integers, or between numbers and booleans.
        """
        return self._checked(_owned(value, self.dtype if is_float(self.dtype) else None, self))

    def prepare_parts(self, commit: Commit, interpreter: BaseInterpreter[Any], value: Array) -> None:
        """Do what `prepare` does, but keep a valid `value` sharded over the ranks of `interpreter`."""
        shards = put_shards(interpreter, self._checked(np.asarray(value)))
        commit.set(self, "_now", _Value(self._now.version + 1, None, (interpreter, shards)))

    def _checked(self, array: Array) -> Array:
        if array.shape != self.shape:
            raise ShapeError(
                f"{self} is {show_shape(self.shape)} but its new value is {show_shape(array.shape)}", op="set"
            )
        if array.dtype == self.dtype:
            return array
        if array.dtype.kind == "i" and self.dtype.kind != "b":
            return as_array(array, self.dtype, force=True)
        raise DtypeError(f"{self} is {dtype_name(self.dtype)} but its new value is {dtype_name(array.dtype)}", op="set")

    # On an interpreter ----------------------------------------------------------------------------------------------

    @property
    def host(self) -> Array | None:
        """Return the current host copy, or None; for inspection only, not to be read or kept."""
        return self._now.host

    @property
    def host_stale(self) -> bool:
        """Return whether the host has no current copy: a mirror is newer, or the value was created on an
        interpreter."""
        return self._now.host is None

    def mirror(self, interpreter: BaseInterpreter[Any], *, parts: bool = False) -> Any:
        """Return the value on `interpreter`: the existing mirror, or the host's value put there, sharded if `parts`."""
        now = self._now
        mirror = now.mirror
        if mirror is not None and mirror[0] is interpreter:
            return mirror[1]
        if is_float(self.dtype) and interpreter.stored_dtype(self.dtype) != interpreter.dtype:
            raise DtypeError(
                f"{self} is {dtype_name(self.dtype)} but is used where floats are {dtype_name(interpreter.dtype)}; "
                f"make it with Param(…, dtype={dtype_name(interpreter.dtype)!r})",
                op="Param",
            )
        if parts:
            first = None if now.first is None else now.first.materialise(self.dtype)
            value = put_shards(interpreter, self._synchronised(now) if first is None else first)
            now.seen = now.seen or mirror is not None
        elif now.first is not None:
            value = interpreter.fill(now.first.initialiser, self.shape, self.dtype)
        else:
            value = interpreter.put(self._synchronised(now))
            now.seen = now.seen or mirror is not None  # the old mirror may still be computing with it
        now.mirror = interpreter, value
        now.first = None
        return value

    def commit(self, value: Any, interpreter: BaseInterpreter[Any]) -> None:
        """Replace the value by one of `interpreter`, of the same type; the host's copy is then stale."""
        commit = Commit()
        prepare_update(commit, [self], [value], interpreter)
        commit.run()

    def release_mirror(self) -> None:
        """Drop the interpreter's copy, after fetching it to the host."""
        now = self._now
        self._synchronised(now)
        now.seen = True
        now.mirror = None

    def _synchronised(self, now: _Value) -> Array:
        """Return the host's copy, brought up to date."""
        if now.host is None:
            if now.first is not None:
                now.host = now.first.materialise(self.dtype)
                now.first = None
            else:
                assert now.mirror is not None
                interpreter, value = now.mirror
                now.host = fetch_whole(interpreter, value, self.shape, self.dtype)
        return now.host


def mirrors(params: Sequence[Param], interpreter: BaseInterpreter[Any], parts: Sequence[bool]) -> list[Any]:
    """Return the values of parameters on `interpreter`, sharded where `parts` has True; see `Param.mirror`."""
    found = []
    for param, part in zip(params, parts):
        mirror = param._now.mirror
        here = mirror is not None and mirror[0] is interpreter
        found.append(mirror[1] if here else param.mirror(interpreter, parts=part))  # type: ignore[index]
    return found


def alone(params: Iterable[Param], interpreter: BaseInterpreter[Any]) -> list[bool]:
    """Return, for each parameter, whether nothing else holds its mirror on `interpreter`, so that a step may overwrite
    it.

    That step must then commit what it wrote.
    """
    found = []
    for param in params:
        now = param._now
        found.append(now.mirror is not None and now.mirror[0] is interpreter and not now.seen)
    return found


def prepare_update(
    commit: Commit,
    params: Sequence[Param],
    values: Sequence[Any],
    interpreter: BaseInterpreter[Any],
    *,
    seen: bool = True,
    parts: Sequence[bool] = (),
) -> None:
    """Add the replacement of parameter values by those of `interpreter` to `commit`. `seen`: others may hold them.

    Raises ShapeError for a value without the shape and dtype of its parameter; on a shapes-only interpreter it does
    nothing else. `parts` says which values are sharded over the ranks; empty means none.
    """
    if any(parts) or (*map(_SHAPE, values), *map(_DTYPE, values)) != (*map(_SHAPE, params), *map(_DTYPE, params)):
        _require_types(params, values, interpreter, parts)
    if interpreter.executes:
        moved = [
            _Value(param._now.version + 1, None, (interpreter, value), None, seen)
            for param, value in zip(params, values)
        ]
        commit.set_each(params, "_now", moved)


def _require_types(
    params: Sequence[Param], values: Sequence[Any], interpreter: BaseInterpreter[Any], parts: Sequence[bool]
) -> None:
    for param, value, part in zip(params, values, parts or [False] * len(params), strict=True):
        shape = shard_shape(param.shape, interpreter.mesh.size(DATA)) if part else param.shape
        if tuple(value.shape) != shape or value.dtype != interpreter.stored_dtype(param.dtype):
            raise ShapeError(
                f"{param} is {show_shape(param.shape)} {dtype_name(param.dtype)} but its new value is "
                f"{show_shape(tuple(value.shape))} {dtype_name(value.dtype)}",
                op="commit",
            )


_SHAPE, _DTYPE = attrgetter("shape"), attrgetter("dtype")
is_trained: Callable[[Param], bool] = attrgetter("_requires_grad")
"""Whether a parameter has a gradient: `Param.requires_grad` as a function, which costs less for many."""


def _copied(value: Array, name: str | None, requires_grad: bool) -> Param:
    return Param(value, name=name, requires_grad=requires_grad)


def _owned(value: Any, dtype: DType | None, param: Param) -> Array:
    """Return a copy of `value` in the form in which Opstage holds tensors, with floats in `dtype`."""
    try:
        array = np.array(as_numpy(value))
        if dtype is None:
            kept = array.dtype in (FLOAT32, FLOAT64) or array.dtype.kind == "O"
            dtype = array.dtype if kept else FLOAT32 if array.dtype.itemsize < 4 else FLOAT64
        return as_array(array, dtype)
    except (OpstageError, ValueError) as error:
        raise UsageError(f"{f'parameter {param.name}' if param.name else 'a parameter'}: {error}") from None
