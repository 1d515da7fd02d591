"""The rules of findings about value ranges, with a sentence on each."""

from __future__ import annotations

RULES = {
    "overflow": "A result may be larger than the numbers of the dtype, and so infinite.",
    "integer-overflow": "An integer may be beyond its dtype, and wrap around.",
    "division-by-zero": "A divisor may be 0.",
    "log-of-zero": "A logarithm may be taken of 0 or of what is below it.",
    "sqrt-of-negative": "A root may be taken of what is below 0.",
    "outside-of-domain": "An inverse function may be taken of what is outside of its domain.",
    "unbounded": "No bound of a result is known, so it may be infinite or nan.",
    "nan-behind-select": "A select drops what is infinite or nan, but its gradient is 0 times infinity.",
    "cancellation": "A difference of nearly equal numbers loses most of its digits.",
    "index-out-of-range": "An index may be outside of the rows that it names.",
}
