"""Steps timed kernel by kernel: what a calibration and a comparison with the prediction measure."""

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
from ..training.optimizer import Optimizer
from ..training.trainer import ScalarTrainer


class TimedOp(NamedTuple):
    """An op that the eager interpreter was asked for. `nbytes` is what it reads and writes, 0 where it gives views."""

    primitive: Primitive
    static: Static
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    nbytes: int
    region: Region
    backward: bool


@final
class Timed(Transparent[R]):
    """An interpreter in front of another one that notes which ops there are, and how long each takes.

    noted     the ops of one run, where it is a list; else the seconds of each go to `seconds`
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
        self.noted.append(TimedOp(primitive, static, inputs, outputs, nbytes, cursor.region, cursor.backward))
        return outs


def _is_view(out: Any, refs: Sequence[Any]) -> bool:
    return isinstance(out, np.ndarray) and any(np.may_share_memory(out, ref) for ref in refs)


def _types(refs: Sequence[Any]) -> tuple[TensorType, ...]:
    return tuple([TensorType(ref.shape, ref.dtype) for ref in refs])


def fastest(step: Callable[[], Any], seconds: float, least: int = 3) -> float:
    """The seconds of the fastest of the steps that are made in about so many seconds, `least` of them at least."""
    best, stop, made = float("inf"), time.perf_counter() + seconds, 0
    while made < least or time.perf_counter() < stop:
        start = time.perf_counter()
        step()
        best = min(best, time.perf_counter() - start)
        made += 1
    return best


@final
class TimedStep:
    """A training step of a trainer on the CPU, which can be run as it is and kernel by kernel.

    Every run begins with the same parameters and moments but for those that the runs before have moved.
    """

    def __init__(self, trainer: ScalarTrainer, optimizer: Optimizer, batch: Sequence[Any]):
        state = trainer.init_optim(optimizer)
        self.step: Callable[[], Any] = lambda: trainer.advance(optimizer, state, *batch)
        self.step()
        self._trainer = trainer
        self._works: list[Work] = []
        self.executor: CpuExecutor | None = None
        interpreter = trainer.in_front(lambda inner: inner)
        if isinstance(interpreter, CompiledOps):
            self.executor = interpreter.programs.executors[-1]
            assert self.executor.plan is not None
            self._works = works(self.executor.plan)

    @property
    def works(self) -> list[Work]:
        """The kernels of a compiled step."""
        return self._works

    def ops(self, rounds: int) -> list[tuple[TimedOp, float]]:
        """Each op of an eager step with the seconds of the fastest of so many rounds."""
        inner = self._trainer.in_front(lambda inner: inner)
        timed = Timed(inner)
        self._trainer.in_front(lambda _: timed)
        best: list[float] = []
        try:
            self.step()
            timed.noted = noted = []
            self.step()
            timed.noted = None
            for _ in range(rounds):
                timed.seconds = []
                self.step()
                best = [*map(min, best, timed.seconds)] if best else timed.seconds
        finally:
            self._trainer.in_front(lambda _: inner)
        return [*zip(noted, best, strict=True)]

    def kernels(self, rounds: int) -> list[tuple[Work, float]]:
        """Each kernel of a compiled step with the seconds of the fastest of so many rounds."""
        executor = self.executor
        assert executor is not None and executor.plan is not None
        best: list[float] = []
        try:
            for _ in range(rounds):
                executor.seconds = seconds = [0.0] * len(executor.plan.steps)
                self.step()
                best = [*map(min, best, seconds)] if best else seconds
        finally:
            executor.seconds = None
        return [(work, sum(best[work.first : work.first + work.steps])) for work in self._works]
