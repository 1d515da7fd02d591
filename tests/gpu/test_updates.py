"""Updates of many parameters at once, on a GPU: also of so many elements that a thread goes through several."""

from __future__ import annotations

import pytest

import opstage
from opstage import optim
from tests.cuda.test_updates import *  # noqa: F403  # pytest runs what stands here
from tests.cuda.test_updates import CUDA, OPTIMIZERS, operands, same_bits, scalars, updates

from .here import REHEARSAL


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_great_and_small_ones(optimizer: optim.Optimizer) -> None:
    great = [(3000, 1000), (2**22 + 1,), (1000, 1001)] if not REHEARSAL else [(130, 3)]
    each = operands(optimizer, [(5, 7), *great, (1,), *[(n,) for n in range(1, 20 if REHEARSAL else 200)]])
    given = scalars(optimizer)
    alone = [opstage.run(updates(optimizer), given, [one], options=CUDA)[0] for one in each]
    same_bits(opstage.run(updates(optimizer), given, each, options=CUDA), alone)
