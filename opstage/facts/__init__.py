"""Facts: what is proved of a program for every allowed size, by running it on facts in place of tensors.

`Interpretation` runs closed bodies in any `Domain`. `dependence` is one: claims are proved by it, or refuted by a run.
`ranges` is another: where numbers may leave the dtype. `report_of` brings recorded graphs to both.
"""

from ..interpreters.shape_check.claimed import ClaimVerdict
from ..ops.claims import Causal, Claim, Ignores, Independent, Uses, Window
from .domain import Domain, OpCall, Rule
from .graphs import report_of
from .interpret import Interpretation
from .prove import with_claims
from .ranged import RangeReport, bounds_of_claims, ranges_of, with_ranges
from .ranges import ValueRange

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
