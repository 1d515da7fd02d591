"""Facts: what is proved of a program for every allowed size, by running it on facts in place of tensors.

`Interpretation` runs closed bodies in any `Domain`; `dependence` is one. Claims are proved by it, or refuted by a run.
"""

from ..interpreters.shape_check.claimed import ClaimVerdict
from ..ops.claims import Causal, Claim, Ignores, Independent, Uses, Window
from .domain import Domain, OpCall, Rule
from .interpret import Interpretation
from .prove import with_claims

__all__ = [
    "Causal",
    "Claim",
    "ClaimVerdict",
    "Domain",
    "Ignores",
    "Independent",
    "Interpretation",
    "OpCall",
    "Rule",
    "Uses",
    "Window",
    "with_claims",
]
