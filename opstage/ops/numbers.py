"""Numbers from users: NumPy scalars and arrays of one number become Python numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import UsageError
from .untrusted import brief


class NotAnArrayError(UsageError):
    """A value that NumPy cannot convert to an array, such as ragged lists, with NumPy's reason."""

    def __init__(self, value: Any, reason: str):
        super().__init__(f"{brief(value)} is not an array: {reason}")
        self.reason = reason


def plain(value: Any) -> Any:
    """Convert a NumPy scalar, or an array without axes, to a Python number; return anything else unchanged."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.ndim):
        return value.item()
    return value


def as_numpy(value: Any) -> npt.NDArray[Any]:
    """Return `np.asarray(value)`. Raises UsageError if an array of another library refuses, such as a torch tensor that
    requires a gradient, which would silently be lost; UsageError for a masked array with masked entries; and
    NotAnArrayError for ragged lists."""
    if hasattr(value, "filled") and np.ma.is_masked(value):
        raise UsageError("a masked array has entries that are masked; fill them first: x.filled(…)")
    try:
        return np.asarray(value)
    except (RuntimeError, TypeError) as error:
        if not hasattr(value, "__array__"):
            raise
        kind = f"{type(value).__module__.partition('.')[0]}'s {type(value).__name__}"
        raise UsageError(f"{kind} gives no NumPy array: {error}") from None
    except UsageError:
        raise
    except ValueError as error:
        raise NotAnArrayError(value, str(error)) from None


def plain_sequence(value: Any) -> Any:
    """Convert as `plain`, and an array with one axis to a tuple of Python numbers."""
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return tuple(value.tolist())
    return plain(value)
