"""Times steps kernel by kernel, for calibration and for comparison with a prediction."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

import numpy as np
from typing_extensions import override

from ..interpreters.graph.compiled import CompiledOps
from ..interpreters.graph.cpu.cost import Work, works
from ..interpreters.graph.executor import CpuExecutor
from ..interpreters.interpreter import BaseInterpreter
from ..interpreters.transparent import Transparent
from ..ops.cursor import Region
from ..ops.primitive import Primitive, R, Static
from ..ops.types import TensorType
from ..optim.optimizer import Optimizer
from ..training.trainer import ScalarTrainer


class TimedOp(NamedTuple):
    """An op requested from the eager interpreter. `nbytes` is what it reads and writes, 0 where it returns views."""

    primitive: Primitive
    static: Static
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    nbytes: int
    region: Region
    backward: bool


@final
class Timed(Transparent[R]):
    """An interpreter in front of another one that records the ops, or how long each takes.

    noted     the ops of one run, if it is a list; otherwise the seconds of each op go to `seconds`
    """

    __slots__ = ("noted", "seconds")

    def __init__(self, inner: BaseInterpreter[R]):
        super().__init__(inner)
        self.noted: list[TimedOp] | None = None
        self.seconds: list[float] = []

    @property
    @override
    def fuses(self) -> bool:
        return self.inner.fuses

    @override
    def has_fused(self, primitive: Primitive, types: tuple[TensorType, ...]) -> bool:
        return self.inner.has_fused(primitive, types)

    @override
    def bind(self, primitive: Primitive, refs: tuple[R, ...], static: Static, /) -> tuple[R, ...]:
        if self.noted is None:
            start = time.perf_counter()
            outs = self.inner.bind(primitive, refs, static)
            self.seconds.append(time.perf_counter() - start)
            return outs
        outs = self.inner.bind(primitive, refs, static)
        inputs, outputs = _types(refs), _types(outs)
        nbytes: Any = sum(type_.nbytes for type_ in (*inputs, *outputs))
        if refs and all(_is_view(out, refs) for out in outs):
            nbytes = 0
        cursor = self.cursor
        self.noted.append(TimedOp(primitive, static, inputs, outputs, nbytes, cursor.region, bool(cursor.backward)))
        return outs


def _is_view(out: Any, refs: Sequence[Any]) -> bool:
    return isinstance(out, np.ndarray) and any(np.may_share_memory(out, ref) for ref in refs)


def _types(refs: Sequence[Any]) -> tuple[TensorType, ...]:
    return tuple([TensorType(ref.shape, ref.dtype) for ref in refs])


def fastest(step: Callable[[], Any], seconds: float, least: int = 3) -> float:
    """The seconds of the fastest of the steps run in about `seconds`, at least `least` of them."""
    best, stop, made = float("inf"), time.perf_counter() + seconds, 0
    while made < least or time.perf_counter() < stop:
        start = time.perf_counter()
        step()
        best = min(best, time.perf_counter() - start)
        made += 1
    return best


@final
class TimedStep:
    """A training step of a trainer on the CPU, which can be run as a whole and kernel by kernel.

    For every figure it keeps the best of all rounds so far. Each step starts from the same optimizer state.

    whole       the seconds of the fastest step so far
    executor    of a compiled step
    """

    def __init__(self, trainer: ScalarTrainer, optimizer: Optimizer, batch: Sequence[Any]):
        state = trainer.init_optim(optimizer)
        self.step: Callable[[], Any] = lambda: trainer.advance(optimizer, state, *batch)
        self.step()
        self.whole = float("inf")
        self.executor: CpuExecutor | None = None
        self._trainer = trainer
        self._works: list[Work] = []
        self._ops: list[TimedOp] = []
        self._best: list[float] = []
        interpreter = trainer.in_front(lambda inner: inner)
        if isinstance(interpreter, CompiledOps):
            self.executor = interpreter.programs.executors[-1]
            assert self.executor.plan is not None
            self._works = works(self.executor.plan)

    def run(self, seconds: float) -> float:
        """Run steps for about `seconds`; returns the time of the fastest so far."""
        self.whole = min(self.whole, fastest(self.step, seconds))
        return self.whole

    def ops(self, rounds: int) -> list[tuple[TimedOp, float]]:
        """Each op of an eager step, with its fewest seconds so far, after `rounds` more steps."""
        inner = self._trainer.in_front(lambda inner: inner)
        timed = Timed(inner)
        self._trainer.in_front(lambda _: timed)
        try:
            self.step()
            if not self._ops:
                timed.noted = self._ops
                self.step()
                timed.noted = None
            for _ in range(rounds):
                timed.seconds = []
                self.step()
                self._keep(timed.seconds)
        finally:
            self._trainer.in_front(lambda _: inner)
        return [*zip(self._ops, self._best, strict=True)]

    def kernels(self, rounds: int) -> list[tuple[Work, float]]:
        """Each kernel of a compiled step, with its fewest seconds so far, after `rounds` more steps."""
        executor = self.executor
        assert executor is not None and executor.plan is not None
        try:
            for _ in range(rounds):
                executor.seconds = seconds = [0.0] * len(executor.plan.steps)
                self.step()
                self._keep(seconds)
        finally:
            executor.seconds = None
        return [(work, sum(self._best[work.first : work.first + work.steps])) for work in self._works]

    def _keep(self, seconds: list[float]) -> None:
        self._best = [*map(min, self._best, seconds)] if self._best else seconds
