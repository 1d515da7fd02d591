"""Which samples the quick suite takes: a part of those of each op, chosen by names alone; the rest is marked slow.

A defect of an op shows in most of its samples, so that a part shows it at once, and all of them in `make test-slow`.
tests/structure/test_suites.py holds that every op, interpreter and dtype is in the part.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import TypeVar

import pytest
from _pytest.mark.structures import ParameterSet

from tests.samples.sample import Sample
from tests.searches import FULL

C = TypeVar("C")

LEAST, ONE_OF = 2, 4
"""Of an op's samples the quick suite has two, or a quarter where that is more."""


def by_op(samples: Iterable[Sample]) -> dict[str, list[Sample]]:
    """The samples of each op, in an order that their names give and the files do not."""
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.op, []).append(sample)
    return {op: sorted(of_op, key=lambda sample: (turn(sample.id), sample.id)) for op, of_op in found.items()}


def turn(name: str) -> int:
    """A number that a name always has."""
    return zlib.crc32(name.encode())


def quick(samples: Sequence[Sample]) -> list[Sample]:
    """Some samples of each op."""
    chosen = {sample.id for of_op in by_op(samples).values() for sample in of_op[: max(LEAST, len(of_op) // ONE_OF)]}
    return [sample for sample in samples if sample.id in chosen]


def searched(samples: Sequence[Sample]) -> Sequence[Sample]:
    """The samples that a search in the slow suite goes through: some of each op, or all."""
    return samples if FULL else quick(samples)


def all_samples(samples: Sequence[Sample]) -> list[ParameterSet]:
    """All samples as parameters, of which the quick suite runs some."""
    chosen = {sample.id for sample in quick(samples)}
    return [
        pytest.param(sample, id=sample.id, marks=() if sample.id in chosen else pytest.mark.slow) for sample in samples
    ]


def dealt(samples: Sequence[Sample], columns: Sequence[C], least: int) -> list[tuple[Sample, C]]:
    """Each sample with one of the columns in turn, and more where an op has fewer samples than `least` columns.

    The columns of an op follow each other, the last by the first: what is to be met by every op stands in any `least`
    of them."""
    found = []
    for op, of_op in by_op(samples).items():
        start = turn(op)
        for k in range(max(len(of_op), least)):
            found.append((of_op[k % len(of_op)], columns[(start + k) % len(columns)]))
    return sorted(found, key=lambda pair: pair[0].id)
