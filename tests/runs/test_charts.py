"""Curves and small images as a page shows them."""

from __future__ import annotations

import base64
from io import BytesIO

import numpy as np
import pytest
from matplotlib.image import imread

from opstage.runs.charts import Curve, Curves, data_uri, panel_svg, thin_curve


def test_a_png_is_read_back() -> None:
    image = np.array([[0.0, 0.2, 1.0], [1.0, 2.0, -1.0]])
    head, _, data = data_uri(image).partition(",")
    assert head == "data:image/png;base64"
    assert imread(BytesIO(base64.b64decode(data))) == pytest.approx(np.array([[0, 0.2, 1], [1, 1, 0]]), abs=1e-6)


def test_a_panel_without_values_says_so() -> None:
    (loss,) = Curves([]).panels()
    assert panel_svg(loss) == "<p>No values of loss yet.</p>"


def test_values_that_are_not_finite_are_left_out_of_a_curve() -> None:
    lines = [{"kind": "step", "step": s, "epoch": 0, "loss": y} for s, y in ((1, 1.0), (2, float("nan")), (3, 2.0))]
    (loss,) = Curves(lines).panels()
    assert loss.curves == (Curve("training, single steps", ((1, 1.0), (3, 2.0)), faint=True),)
    assert "nan" not in panel_svg(loss)


def test_a_long_curve_keeps_its_extremes() -> None:
    values = np.random.default_rng(0).normal(size=20_000)
    curve = Curve("x", tuple(enumerate(values.tolist())))
    kept = thin_curve(curve)
    assert len(kept) <= 1000
    assert [x for x, _ in kept] == sorted(x for x, _ in kept)
    assert max(y for _, y in kept) == values.max()
    assert min(y for _, y in kept) == values.min()
