"""Formats of findings: for a terminal, for programs, and for services that annotate code."""

from .document import FORMAT, VERSION, from_document, to_document
from .outcome import CheckOutcome, Section, Unusable
from .render import FORMATS, render

__all__ = [
    "FORMAT",
    "FORMATS",
    "VERSION",
    "CheckOutcome",
    "Section",
    "Unusable",
    "from_document",
    "render",
    "to_document",
]
