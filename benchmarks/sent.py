"""Predict the bytes that each process of a mesh sends in a step.

A rank's collectives run on shapes through the code that sends them, once for each process, and the bytes are counted.
So this is exact for any number of processes, while `Traffic` has formulas for one rank per process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np
from typing_extensions import override

from opstage.distributed.ranks import Ranks
from opstage.distributed.transport import EXCHANGE, EXCHANGE_START, PendingExchange
from opstage.interpreters.shape_check.program import CheckedProgram
from opstage.interpreters.shape_check.traffic import Collective, collectives
from opstage.ops.host_arrays import Array
from opstage.ops.mesh import Mesh
from opstage.ops.primitive import Primitive, Static
from opstage.ops.types import FLOAT32, DType, TensorType, as_dtype
from opstage.transforms.interpreter import BaseInterpreter, Typed


def sent_by_processes(program: CheckedProgram, mesh: Mesh, processes: int) -> tuple[int, ...]:
    """Return the bytes that each process sends in one run of a rank's program with numeric sizes.

    Assumes that sums are sent one by one, not in buckets; for two processes the bytes are the same.
    """
    calls = list(collectives(program.body, 1))
    return tuple([_sent(calls, mesh, process, processes) for process in range(processes)])


def _sent(calls: list[Collective], mesh: Mesh, process: int, processes: int) -> int:
    counting = _Counting()
    ranks = Ranks(counting, mesh, _Process(process, processes))
    total = 0
    for primitive, static, types, times in calls:
        before = counting.sent
        ranks.begin(())
        values = [ranks.each([_Awaited(type_, counting) for _ in ranks.hosted]) for type_ in types]
        ranks.bind(primitive, tuple(values), static)
        total += (counting.sent - before) * int(times)
    return total


@final
class _Awaited(Typed):
    """A tensor with only a type."""

    __slots__ = ("type", "ops")

    def __init__(self, type_: TensorType, ops: _Counting):
        self.type, self.ops = type_, ops


@final
class _Counting(BaseInterpreter[_Awaited]):
    """An interpreter on types that counts the bytes of exchanges."""

    __slots__ = ("sent",)

    def __init__(self) -> None:
        super().__init__(FLOAT32, 0)
        self.sent = 0

    @property
    @override
    def executes(self) -> bool:
        return False

    @override
    def put(self, value: Any, /) -> _Awaited:
        return _Awaited(TensorType(np.shape(value), np.asarray(value).dtype), self)

    @override
    def get(self, ref: _Awaited, /) -> Any:
        return ref

    @override
    def const(self, value: Any, /, *, dtype: str | DType | None = None) -> _Awaited:
        return _Awaited(TensorType(np.shape(value), FLOAT32 if dtype is None else as_dtype(dtype)), self)

    @override
    def adopt(self, ref: Any, /) -> _Awaited:
        assert type(ref) is _Awaited, ref
        return ref

    @override
    def bind(self, primitive: Primitive, refs: tuple[_Awaited, ...], static: Static, /) -> tuple[_Awaited, ...]:
        if primitive in (EXCHANGE, EXCHANGE_START):
            self.sent += sum(int(ref.type.nbytes) for ref in refs[1:])
        types = self.infer(primitive, tuple([ref.type for ref in refs]), static)
        return tuple([_Awaited(type_, self) for type_ in types])


@final
class _Process:
    """A transport that only knows the number of this process."""

    agreed = True
    waited = 0.0
    sent = 0
    hosts: Sequence[str] = ()

    def __init__(self, process: int, processes: int):
        self.process, self.processes = process, processes

    def exchange(self, parts: Mapping[int, Array], room: Mapping[int, Array], called: str) -> None:
        raise AssertionError(called)

    def start(self, parts: Mapping[int, Array], room: Mapping[int, Array], called: str) -> PendingExchange:
        raise AssertionError(called)

    def watch(self, done: Callable[[], bool], called: str) -> None:
        raise AssertionError(called)

    def leave_run(self, error: BaseException) -> None:
        pass

    def fail(self, error: BaseException) -> bool:
        raise AssertionError

    def abort(self, code: int) -> None:
        raise AssertionError

    def wait_at_most(self, seconds: float) -> None:
        raise AssertionError
