"""Which class a classifier took for which, counted over held-out data."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any, final

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from ..data import Batches
from ..interpreters.transparent import Transparent
from ..ops.catalogue.loss import CROSS_ENTROPY
from ..ops.primitive import Primitive, Static
from ..training.trainer import ScalarTrainer

MOST_CLASSES = 40


@final
class _Classifications(Transparent[Any]):
    """Keeps the logits and labels that a program hands to cross_entropy."""

    __slots__ = ("seen",)

    def __init__(self, inner: Any):
        super().__init__(inner)
        self.seen: list[tuple[Any, Any]] = []

    @override
    def bind(self, primitive: Primitive, refs: tuple[Any, ...], static: Static, /) -> tuple[Any, ...]:
        if primitive is CROSS_ENTROPY:
            self.seen.append((refs[0], refs[1]))
        outs: tuple[Any, ...] = self.inner.bind(primitive, refs, static)
        return outs


def confusion_matrix(
    trainer: ScalarTrainer, metrics: Callable[..., Any], batches: Batches
) -> npt.NDArray[np.int64] | None:
    """Counts (true class, predicted class) over `batches`; None for a model that is no classifier of whole samples.

    A classifier is known by its metrics: they call cross_entropy once, on logits (B, classes) and labels (B).
    """

    def program(ops: Any, *trees: Any) -> Any:
        watched = _Classifications(ops)
        metrics(watched, *trees)
        return list(watched.seen)

    counts: npt.NDArray[np.int64] | None = None
    with closing(batches.epoch(0)) as epoch:
        for batch in epoch:
            seen = trainer.evaluate(program, *batch)
            if len(seen) != 1:
                return None
            logits, labels = (np.asarray(value) for value in seen[0])
            if logits.ndim != 2 or len(logits) != len(batch[0]) or not 2 <= logits.shape[1] <= MOST_CLASSES:
                return None
            classes = logits.shape[1]
            if counts is None:
                counts = np.zeros((classes, classes), np.int64)
            known = labels >= 0
            np.add.at(counts, (labels[known], logits.argmax(axis=1)[known]), 1)
    return counts
