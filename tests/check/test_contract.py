"""A batch against the trainer's Specs: shapes, named dims, what was declared of them, what was left undecided."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Spec
from opstage.ops.errors import ShapeError


@pytest.mark.parametrize(
    ("specs", "good", "bad", "message"),
    [
        (["B T"], [(2, 3)], [(2,)], r'x is \(2,\): it has rank 1 but Spec\("B T"\) has rank 2'),
        (["B B"], [(2, 2)], [(2, 3)], r"x is \(2, 3\): it has 3 on axis 1 but B is 2"),
        (["B", "B"], [(2,), (2,)], [(2,), (3,)], r"y is \(3,\): it has 3 on axis 0 but B is 2"),
        (["2*B"], [(6,)], [(5,)], r'x is \(5,\): it has 5 on axis 0 where Spec\("2\*B"\) wants 2\*B'),
        (["2*B", "B"], [(6,), (3,)], [(6,), (2,)], r"x is \(6,\): it has 6 on axis 0 where .* wants 2\*B"),
        (["B+1", "3*H", "B*H"], [(3,), (6,), (4,)], [(3,), (6,), (5,)], r"z is .* wants B\*H"),
        (["10-B", "B"], [(7,), (3,)], [(7,), (4,)], "wants 10 - B"),
        (["B"], [(1,)], [(0,)], r"B is 0, but a dim is at least 1"),
        (["B+5"], [(6,)], [(3,)], r"wants B \+ 5"),
        (["B", "min(B, 3)"], [(5,), (3,)], [(2,), (3,)], r"y is \(3,\): it has 3 on axis 0 where .* wants min\(B, 3\)"),
        (["min(B, 3)"], [(3,)], [(4,)], r"it has 4 on axis 0 where .* wants min\(B, 3\)"),
    ],
    ids=lambda value: "; ".join(map(str, value)) if isinstance(value, list) else None,
)
def test_batches_outside_the_specs_are_refused(specs: Any, good: Any, bad: Any, message: str) -> None:
    def loss(ops: Any, params: Any, x: Any, y: Any = None, z: Any = None) -> Any:
        return params * sum(ops.sum(v) for v in (x, y, z) if v is not None)

    trainer = opstage.scalar_trainer(loss, np.array(1.0), *map(Spec, specs))
    trainer.step(0.1, *map(np.ones, good))
    before = trainer.get_params()
    with pytest.raises(ShapeError, match=message):
        trainer.step(0.1, *map(np.ones, bad))
    assert trainer.get_params() == before


def test_declared_facts_hold_for_every_batch() -> None:
    trainer = opstage.scalar_trainer(
        lambda ops, p, x: p * ops.sum(x), np.array(1.0), Spec("B T", where=["T <= 4", "B % 2 == 0", "B >= 0"])
    )
    trainer.step(0.1, np.ones((2, 4)))
    trainer.step(0.1, np.ones((0, 4)))
    with pytest.raises(ShapeError, match="T <= 4, which was declared, does not hold at B=2, T=5"):
        trainer.step(0.1, np.ones((2, 5)))
    with pytest.raises(ShapeError, match="B % 2 == 0, which was declared, does not hold at B=3, T=4"):
        trainer.step(0.1, np.ones((3, 4)))


def test_the_kind_of_a_dtype_is_part_of_the_contract() -> None:
    def loss(ops: Any, p: Any, x: Any, i: Any) -> Any:
        return p * ops.sum(ops.gather_vec(x, i))

    trainer = opstage.scalar_trainer(loss, np.array(1.0), Spec("B"), Spec("K", dtype="int64"))
    for kind in (np.int64, np.int32, np.uint8):
        trainer.step(0.1, np.ones(3), np.zeros(2, kind))
    with pytest.raises(opstage.DtypeError, match=r"i is float32 but Spec\(\"K\", dtype='int64'\) promised integers"):
        trainer.step(0.1, np.ones(3), np.zeros(2))
    with pytest.raises(opstage.DtypeError, match=r'x is int64 but Spec\("B"\) promised floats'):
        trainer.step(0.1, np.ones(3, int), np.zeros(2, int))


def test_conditions_that_the_check_could_not_decide_are_enforced() -> None:
    undecided = Spec("X", where=["X*X*X + Y*Y*Y == 4104", "X < Y"])  # 2³ + 16³ = 9³ + 15³, which no small search finds

    def loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
        return ops.sum(ops.reshape(x, shape=(9,))) * params + ops.sum(y)

    trainer = opstage.scalar_trainer(loss, np.array(1.0), undecided, Spec("Y"))
    trainer.step(0.1, np.ones(9), np.ones(15))
    before = trainer.get_params()
    message = r"X == 9, needed by reshape at .*test_contract.py:\d+ does not hold at X=2, Y=16"
    with pytest.raises(ShapeError, match=message):
        trainer.step(0.1, np.ones(2), np.ones(16))
    with pytest.raises(ShapeError, match=r"X\*\*3 \+ Y\*\*3 == 4104, which was declared, does not hold at X=9, Y=9"):
        trainer.step(0.1, np.ones(9), np.ones(9))
    assert trainer.get_params() == before
