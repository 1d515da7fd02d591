"""The name of `opstage.interop.weights` in the last release."""

from __future__ import annotations

import warnings
from typing import Any

from ..interop import weights

warnings.warn("opstage.training.weights is now opstage.interop.weights", DeprecationWarning, stacklevel=2)


def __getattr__(name: str) -> Any:
    return getattr(weights, name)
