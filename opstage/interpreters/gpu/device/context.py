"""The op that launches serve."""

from __future__ import annotations

from typing import NamedTuple

from ....options import MatmulPrecision
from .watch import Watch


class OpContext(NamedTuple):
    """An op and how it is computed, passed to a device with the work that launches its kernels.

    op, region      its name and region, for errors, some of which are found later
    precision       of float32 products, as Options.matmul_precision says
    watch           the index checks of the interpreter that asks
    """

    op: str
    region: str
    precision: MatmulPrecision
    watch: Watch
