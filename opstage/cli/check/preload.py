"""What the server of checks imports, and runs once, before it forks: its children inherit that."""

from __future__ import annotations

import gc
from contextlib import suppress

from ...interpreters.shape_check.formats.document import CheckOutcome, to_document
from ...ops import derived as derived
from ...ops.spec import Shapes, read_inputs
from ...runs import settings as settings  # what a model file needs
from ...training.program_check import check_program
from . import checks as checks

with suppress(Exception):  # only an optimisation
    shapes = Shapes(read_inputs(["x: B 2"]), read_inputs(["w: 2 2"]))
    checked = check_program(lambda ops, params, x: ops.sum(ops.linear(params["w"], None, x)), shapes)
    to_document(CheckOutcome.of(checked.report, "", checked.what))
gc.collect()
gc.freeze()  # so that children do not traverse shared objects, which would copy their pages
