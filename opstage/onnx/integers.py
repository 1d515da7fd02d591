"""Short integers, and the wraparound of their arithmetic."""

from ..imported.integers import wrapped

__all__ = ["wrapped"]
