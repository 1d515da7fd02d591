"""Known gaps, each with its reason; strict, so that a gap that closes must be taken out."""

EXEMPT_FROM_SECOND_ORDER: dict[str, str] = {}
