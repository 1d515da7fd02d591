"""The confusion matrix of a classifier on held-out data, and its most confident mistakes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from ..data import Batches
from ..ops.loss import CROSS_ENTROPY
from ..ops.primitive import Primitive, Static
from ..training.trainer import ScalarTrainer
from ..transforms.transparent import Transparent

MOST_CLASSES = 40
MOST_MISTAKES = 12


@final
@dataclass(frozen=True)
class Mistake:
    """A misclassified sample.

    row            its number in the held-out data, from 0
    true, found    its class, and the predicted class
    probability    the predicted probability of the class found
    sample         its row of the batch's first array
    """

    row: int
    true: int
    found: int
    probability: float
    sample: npt.NDArray[Any]


@final
@dataclass(frozen=True)
class Scores:
    """Precision, recall and F1 of each class; nan if the divisor is 0.

    precision    the fraction of the predictions of the class that are right
    recall       the fraction of the samples of the class that are found
    f1           the harmonic mean of both: 2 tp/(samples + taken)
    """

    precision: npt.NDArray[np.float64]
    recall: npt.NDArray[np.float64]
    f1: npt.NDArray[np.float64]


@final
@dataclass(frozen=True)
class Classification:
    """The result of a classifier on held-out data.

    counts      counts (true class, predicted class)
    mistakes    the most confident mistakes, in descending order
    """

    counts: npt.NDArray[np.int64]
    mistakes: tuple[Mistake, ...]

    @property
    def scores(self) -> Scores:
        """Precision, recall and F1 of each class."""
        right = self.counts.diagonal().astype(np.float64)
        samples, taken = self.counts.sum(axis=1), self.counts.sum(axis=0)
        with np.errstate(invalid="ignore"):
            return Scores(right / taken, right / samples, 2 * right / (samples + taken))


@final
class _Classifications(Transparent[Any]):
    """Records the logits and labels that a program passes to cross_entropy."""

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


def classify(trainer: ScalarTrainer, metrics: Callable[..., Any], batches: Batches) -> Classification | None:
    """Return the result on `batches`, or None if the model is not a classifier of whole samples.

    A classifier is recognised by its metrics: they call cross_entropy once, on logits (B, classes) and labels (B).
    Samples with a negative label are ignored.
    """

    def program(ops: Any, *trees: Any) -> Any:
        watched = _Classifications(ops)
        metrics(watched, *trees)
        return list(watched.seen)

    counts: npt.NDArray[np.int64] | None = None
    mistakes: list[Mistake] = []
    before = 0
    with closing(batches.epoch(0)) as epoch:
        for batch in epoch:
            seen = trainer.evaluate(program, *batch)
            if len(seen) != 1:
                return None
            logits, labels = (np.asarray(value) for value in seen[0])
            if logits.ndim != 2 or len(logits) != len(batch[0]) or not 2 <= logits.shape[1] <= MOST_CLASSES:
                return None
            if labels.ndim != 1:
                return None
            classes = logits.shape[1]
            if counts is None:
                counts = np.zeros((classes, classes), np.int64)
            known, found = labels >= 0, logits.argmax(axis=1)
            np.add.at(counts, (labels[known], found[known]), 1)
            (wrong,) = np.nonzero(known & (found != labels))
            shares = _probabilities(logits[wrong], found[wrong])
            mistakes += [
                Mistake(before + int(i), int(labels[i]), int(found[i]), float(share), np.array(batch[0][i]))
                for i, share in sorted(zip(wrong, shares), key=lambda pair: -pair[1])[:MOST_MISTAKES]
            ]
            mistakes = sorted(mistakes, key=lambda mistake: -mistake.probability)[:MOST_MISTAKES]
            before += len(labels)
    return None if counts is None else Classification(counts, tuple(mistakes))


def _probabilities(logits: npt.NDArray[Any], classes: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return softmax(logits)[class] of each row, for the class of its largest logit: 1/Σ exp(z - max z)."""
    z = logits.astype(np.float64)
    own = np.take_along_axis(z, classes[:, None], axis=1)
    shares: npt.NDArray[np.float64] = 1.0 / np.exp(z - own).sum(axis=1)
    return shares
