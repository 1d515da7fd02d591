"""Claims about which inputs an output may read, proved for every size or refuted by running the program."""

from .claims import Causal, Claim, Independent
from .prove import ClaimVerdict, prove

__all__ = ["Causal", "Claim", "ClaimVerdict", "Independent", "prove"]
