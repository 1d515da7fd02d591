"""Facts: what is proved of a program for every allowed size, by abstract interpretation.

`with_claims` proves claims about what outputs read, or refutes them by a run; `ranges_of` finds where numbers may leave
the dtype. `report_of` makes a recorded graph acceptable to both.
"""

from __future__ import annotations

from ..analysis.domain import Domain, OpCall, Rule
from ..analysis.interpretation import Interpretation
from ..analysis.ranges import ValueRange
from ..interpreters.graph.graph import Graph
from ..interpreters.shape_check.finding import ClaimVerdict
from ..interpreters.shape_check.program import CheckedProgram
from ..interpreters.shape_check.report import Report
from ..ops.dims import DimExpr, DimScope
from ..ops.errors import UsageError, a_type
from ..ops.primitive import Effect
from ..ops.spec import Causal, Claim, Ignores, Independent, Uses, Window
from .claims import with_claims
from .range_report import RangeReport, bounds_of_claims, ranges_of, with_ranges

__all__ = [
    "Causal",
    "Claim",
    "ClaimVerdict",
    "Domain",
    "Ignores",
    "Independent",
    "Interpretation",
    "OpCall",
    "RangeReport",
    "Rule",
    "Uses",
    "ValueRange",
    "Window",
    "bounds_of_claims",
    "ranges_of",
    "report_of",
    "with_claims",
    "with_ranges",
]
__dir__ = __all__.copy


def report_of(graph: Graph) -> Report:
    """Return the report on a recorded graph, for `ranges_of` and `with_claims`, like that of `opstage.check` on a
    program.

    Findings refer to the source lines that the graph records. A graph does not record what Specs declared, so give the
    bounds of its inputs where they matter.

    Raises:
        UsageError: `graph` is not a recorded graph.
    """
    if not isinstance(graph, Graph):
        raise UsageError(f"report_of: argument graph: expected a graph of opstage.record, got {a_type(graph)}")
    body = graph.body
    scope = next((size.scope for type_ in body.types for size in type_.shape if isinstance(size, DimExpr)), DimScope())
    names = list(graph.input_names)
    if names and names[-1] == "step" and Effect.DRAWS in body.effects:
        names[-1] = ""  # the number of the training step, which is not an argument
    program = CheckedProgram(
        body, tuple(names), lambda: list(graph.output_names), scope=scope, dtype=graph.dtype, seed=graph.seed
    )
    outputs = tuple([body.types[slot] for slot in body.outputs])
    return Report((), (), outputs, body.cost(), len(body.equations), program=program)
