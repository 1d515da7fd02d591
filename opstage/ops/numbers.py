"""Numbers as users write them: NumPy's scalars and arrays of one number are numbers of Python's."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import UsageError
from .untrusted import brief


class NotAnArrayError(UsageError):
    """A value of which NumPy makes no array, such as lists of several lengths, and why, in NumPy's words."""

    def __init__(self, value: Any, reason: str):
        super().__init__(f"{brief(value)} is not an array: {reason}")
        self.reason = reason


def plain(value: Any) -> Any:
    """A NumPy scalar, or array without axes, as the Python number that it holds; anything else as it is."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.ndim):
        return value.item()
    return value


def as_numpy(value: Any) -> npt.NDArray[Any]:
    """`np.asarray`. Raises UsageError where an array of another library refuses, such as one of torch's that wants a
    gradient: it would end here, and nothing would ever say so. And for a masked array with masked entries; and
    NotAnArrayError for lists of several lengths."""
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
    """`plain`, and an array of one axis as a tuple of such numbers."""
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return tuple(value.tolist())
    return plain(value)
