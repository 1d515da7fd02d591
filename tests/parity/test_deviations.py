"""Where Opstage differs from PyTorch on purpose, both still do what the page says of them."""

from __future__ import annotations

import pytest

from tests.parity.deviations import DEVIATIONS, Deviation


@pytest.mark.parametrize("deviation", DEVIATIONS, ids=lambda d: f"{d.op}: {d.pytorch}")
def test_both_do_what_is_said(deviation: Deviation) -> None:
    deviation.check()
