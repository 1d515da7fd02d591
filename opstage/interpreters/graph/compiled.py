"""`CompiledOps`: programs are recorded once per signature, and replayed. `Options(backend="compiled")` on the CPU."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from typing import Any, final

import numpy as np
from typing_extensions import override

from ...ops.errors import LocatedError
from ...ops.primitive import Primitive, Static
from ...ops.trees import Structure
from ...ops.types import TensorType, as_dtype, dtype_name, show_shape
from ...options import Options
from ..base_program import BaseProgram
from ..eager_cpu.interpreter import Array, HostArrays, NumpyOps
from .executor import Executor
from .passes.keys import static_key
from .recorder import record

_log = logging.getLogger(__name__)

_PROGRAMS_KEPT = 1024


class _Entry:
    """A compiled program, and the structure of its result."""

    __slots__ = ("executor", "result")

    def __init__(self, executor: Executor, result: Structure | None):
        self.executor = executor
        self.result = result


@final
class CompiledOps(HostArrays):
    """Refs are host arrays. A program with an identity is compiled once per types of its inputs, any other each time.

    An op that is bound outside of a program is a program of one op.
    """

    __slots__ = ("options", "_eager", "_programs", "_lock")

    def __init__(self, options: Options):
        super().__init__(as_dtype(options.dtype), options.seed)
        self.options = options
        self._eager = NumpyOps(options)
        self._programs: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._lock = threading.RLock()

    @property
    def executors(self) -> list[Executor]:
        """Those of the programs that are kept, the one that ran last at the end."""
        return [entry.executor for entry in self._programs.values()]

    # The host's side ------------------------------------------------------------------------------------------------

    @override
    def has_kernel(self, primitive: Primitive) -> bool:
        return self._eager.has_kernel(primitive)

    # The seam -------------------------------------------------------------------------------------------------------

    @override
    def bind(self, primitive: Primitive, refs: tuple[Array, ...], static: Static, /) -> tuple[Array, ...]:
        types = tuple([TensorType(r.shape, r.dtype) for r in refs])
        try:
            with self._lock:
                key = (primitive, static_key(static))
                entry = self._entry(lambda ops, *x: ops.bind(primitive, x, static), types, key, f" {primitive}")
                return entry.executor.run(refs)
        except LocatedError as error:
            error.place(primitive.name, self.cursor.region.name)
            raise

    @override
    def execute_each(
        self, program: Callable[..., tuple[Array, ...]], refs: tuple[Array, ...], step: int = 0
    ) -> tuple[Array, ...]:
        with np.errstate(all="ignore"):  # as on the eager interpreter
            return super().execute_each(program, refs, step)

    @override
    def execute(
        self, program: Callable[..., tuple[Array, ...]], refs: tuple[Array, ...], step: int = 0
    ) -> tuple[Array, ...]:
        with self._lock:
            types = tuple([TensorType(r.shape, r.dtype) for r in refs])
            if not isinstance(program, BaseProgram):
                return self._entry(program, types, None).executor.run(refs, step)
            spare = frozenset(program.spare)
            entry = self._entry(program, types, None if program.key is None else (program.key, spare), spare=spare)
            program.result = entry.result
            if not spare:
                return entry.executor.run(refs, step)
            outputs, finish = entry.executor.start(refs, step, {i for i, free in program.spare.items() if free})

            def finish_alone() -> None:
                with self._lock:
                    finish()

            program.finish = finish_alone
            return outputs

    def _entry(
        self,
        program: Callable[..., Any],
        types: tuple[TensorType, ...],
        key: Hashable,
        what: str = "",
        spare: Collection[int] = (),
    ) -> _Entry:
        try:
            entry = self._programs.get((key, types)) if key is not None else None
        except TypeError:  # something of the key cannot be hashed
            key = entry = None
        if entry is not None:
            self._programs.move_to_end((key, types))
            return entry
        _log.debug("compiling%s for %s", what, ", ".join(f"{show_shape(t.shape)} {dtype_name(t.dtype)}" for t in types))
        graph = record(program, types, self.dtype, self.seed)
        entry = _Entry(
            Executor(graph, self.options, spare), program.result if isinstance(program, BaseProgram) else None
        )
        if key is not None:
            self._programs[key, types] = entry
            while len(self._programs) > _PROGRAMS_KEPT:
                self._programs.popitem(last=False)
        return entry
