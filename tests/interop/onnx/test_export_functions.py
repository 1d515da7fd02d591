"""Functions over ops as ONNX models: onnxruntime computes what NumPy does."""

from __future__ import annotations

import numpy as np
import optree
import pytest

import opstage
from tests.interop.onnx.runs import checked, run_session, session_of
from tests.ops import test_arrange, test_images, test_places, test_resample
from tests.ops.functions import FLOAT64, Row, drawn

# AveragePool of onnxruntime has no float64.
ROWS = [
    row for module in (test_arrange, test_images, test_resample, test_places) for row in module.ROWS
    if row.name != "lp_pool"
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_onnxruntime_computes_the_same(row: Row) -> None:
    arrays = drawn(row)
    graph = opstage.record(row.call, *arrays, options=FLOAT64)
    results = run_session(session_of(checked(graph)), graph, *arrays)
    expected = optree.tree_leaves(row.reference(*arrays))
    assert len(results) == len(expected)
    for ours, reference in zip(results, expected):
        assert ours.shape == np.shape(reference)
        np.testing.assert_allclose(ours, reference, rtol=1e-8, atol=1e-9)
