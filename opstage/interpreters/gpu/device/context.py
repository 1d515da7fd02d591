"""The op on whose behalf kernels are launched."""

from __future__ import annotations

from typing import NamedTuple

from ....options import MatmulPrecision
from .watch import Watch


class OpContext(NamedTuple):
    """An op and its settings, passed to a device with the work that launches its kernels.

    op, region      its name and region, for errors, which may be detected later
    precision       the precision of float32 products, see Options.matmul_precision
    watch           the index checks of the calling interpreter
    """

    op: str
    region: str
    precision: MatmulPrecision
    watch: Watch
