"""The whole table by name."""

from __future__ import annotations

from benchmarks.each_op.elementwise import ELEMENTWISE, LOSSES, MOVES
from benchmarks.each_op.products import CONVOLUTIONS, LINEAR_ALGEBRA, PRODUCTS
from benchmarks.each_op.reductions import REDUCTIONS
from benchmarks.each_op.row import Row

TABLE: dict[str, Row] = {**ELEMENTWISE, **LOSSES, **REDUCTIONS, **MOVES, **CONVOLUTIONS, **PRODUCTS, **LINEAR_ALGEBRA}
