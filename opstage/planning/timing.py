"""Steps timed kernel by kernel: what a calibration and a comparison with the prediction measure."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

import numpy as np
from typing_extensions import override

from ..interpreters.graph.compiled import CompiledOps
from ..interpreters.graph.cpu.cost import works
from ..interpreters.graph.executor import CpuExecutor
from ..interpreters.interpreter import BaseInterpreter
from ..interpreters.transparent import Transparent
from ..ops.primitive import Primitive, R, Static
from ..ops.types import TensorType
from ..training.optimizer import Optimizer
from ..training.trainer import ScalarTrainer


class TimedOp(NamedTuple):
    """An op that the eager interpreter was asked for, and the seconds until it had the result."""

    primitive: Primitive
    static: Static
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    moves: bool
    seconds: float


@final
class Timed(Transparent[R]):
    """An interpreter in front of another one that notes how long each op takes."""

    __slots__ = ("noted", "running")

    def __init__(self, inner: BaseInterpreter[R]):
        super().__init__(inner)
        self.noted: list[TimedOp] = []
        self.running = False

    @property
    @override
    def fuses(self) -> bool:
        return self.inner.fuses

    @override
    def has_fused(self, primitive: Primitive, types: tuple[TensorType, ...]) -> bool:
        return self.inner.has_fused(primitive, types)

    @override
    def bind(self, primitive: Primitive, refs: tuple[R, ...], static: Static, /) -> tuple[R, ...]:
        if not self.running:
            return self.inner.bind(primitive, refs, static)
        start = time.perf_counter()
        outs = self.inner.bind(primitive, refs, static)
        seconds = time.perf_counter() - start
        moves = not (refs and all(_is_view(out, refs) for out in outs))
        self.noted.append(TimedOp(primitive, static, _types(refs), _types(outs), moves, seconds))
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
    """A training step that can be run as it is and kernel by kernel. One must have been made with `advance` before."""

    def __init__(self, trainer: ScalarTrainer, optimizer: Optimizer, batch: Sequence[Any]):
        self._timed: list[Timed[Any]] = []
        state = trainer.init_optim(optimizer)
        self.step: Callable[[], Any] = lambda: trainer.advance(optimizer, state, *batch)
        self.step()
        interpreter = trainer.in_front(lambda inner: inner)
        self._trainer = trainer
        self.executor: CpuExecutor | None = None
        if isinstance(interpreter, CompiledOps):
            self.executor = interpreter.programs.executors[-1]

    def ops(self, rounds: int) -> list[TimedOp]:
        """Each op of an eager step, the fastest of so many."""
        inner = self._trainer.in_front(lambda inner: inner)
        timed = Timed(inner)
        self._trainer.in_front(lambda _: timed)
        runs: list[list[TimedOp]] = []
        try:
            self.step()
            timed.running = True
            for _ in range(rounds):
                timed.noted = []
                self.step()
                runs.append(timed.noted)
        finally:
            self._trainer.in_front(lambda _: inner)
        return [min(same, key=lambda op: op.seconds) for same in zip(*runs)]

    def kernels(self, rounds: int) -> list[float]:
        """The seconds of each work of a compiled step's plan, the fastest of so many."""
        executor = self.executor
        assert executor is not None and executor.plan is not None
        best: list[float] = []
        try:
            for _ in range(rounds):
                executor.seconds = seconds = [0.0] * len(executor.plan.steps)
                self.step()
                best = [min(pair) for pair in zip(best, seconds)] if best else seconds
        finally:
            executor.seconds = None
        return [sum(best[work.first : work.first + work.steps]) for work in works(executor.plan)]
