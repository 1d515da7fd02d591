"""Functions over ops on a device: as NumPy has them."""

from __future__ import annotations

import numpy as np
import optree
import pytest

import opstage
from opstage.options import Options
from tests.ops import test_arrange, test_images, test_indexing, test_resample
from tests.ops.functions import Row, drawn

ROWS = [row for module in (test_arrange, test_images, test_resample, test_indexing) for row in module.ROWS]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_device_computes_the_same(row: Row) -> None:
    arrays = [x.astype(np.float32) if x.dtype.kind == "f" else x for x in drawn(row)]
    results = optree.tree_leaves(opstage.run(row.call, *arrays, options=Options(device="cuda")))
    for ours, reference in zip(results, optree.tree_leaves(row.reference(*arrays))):
        assert ours.shape == np.shape(reference)
        np.testing.assert_allclose(ours, reference, rtol=1e-4, atol=1e-5)
