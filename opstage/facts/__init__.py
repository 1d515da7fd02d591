"""Facts: what is proved of a program for every allowed size, by running it on facts in place of tensors.

`Interpretation` runs closed bodies in any `Domain`; `dependence` is one. Claims are proved by it, or refuted by a run.
"""

from .claims import Causal, Claim, Independent, Window
from .domain import Domain, OpCall, Rule
from .interpret import Interpretation
from .prove import ClaimVerdict, prove

__all__ = [
    "Causal",
    "Claim",
    "ClaimVerdict",
    "Domain",
    "Independent",
    "Interpretation",
    "OpCall",
    "Rule",
    "Window",
    "prove",
]
