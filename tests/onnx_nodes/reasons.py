"""Which of onnx's node tests Opstage does not import, and why; each must really fail, with what is said here in the
error."""

from __future__ import annotations

import re

_NO_DTYPE = "elements of 8 bits and fewer, texts and complex numbers have no dtype, nor has arithmetic on uint64"
_NO_TENSOR = "it is a sequence or an optional, no tensor"
_NO_SIZE = "a size, or how often it runs, is computed from values"
_NO_ROUNDING = "rounding to float16 or bfloat16 means nothing where all floats are of one dtype"
_RESIZING = "runtimes differ in how they resize so"
_UNKNOWN = "the operator is not known"

REASONS: tuple[tuple[str, str], ...] = (
    (r"have no dtype here|of a kind that is not read", _NO_DTYPE),
    (r"is a (sequence|optional|map|sparse_tensor)|gives? sequences|carries a sequence", _NO_TENSOR),
    (r"only tensors are outputs", _NO_TENSOR),
    (r"cast to b?float16 would not round", _NO_ROUNDING),
    (r"is computed from values|is not known before a run|whether it|how often it|must be known", _NO_SIZE),
    (r"antialias|align_corners by scales|tf_crop_and_resize|policy on proportions|integers are not resized", _RESIZING),
    (r"its operators are of version", "its operators are of a version below 7"),
    (r"is not known|output.* used, of which", _UNKNOWN),
)
"""Pattern of the message, and the reason in the table of the documentation."""

DRAWS = tuple(f"test_training_dropout{end}" for end in ("", "_default", "_mask", "_default_mask"))
"""Cases whose outputs are draws of the reference's own generator: their shapes alone are compared."""


def reason(message: str) -> str | None:
    """Why a case is not imported; None for a message that no reason explains."""
    return next((why for pattern, why in REASONS if re.search(pattern, message)), None)
