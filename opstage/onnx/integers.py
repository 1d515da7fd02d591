"""Short integers, and what their arithmetic wraps around to."""

from ..imported.integers import wrapped

__all__ = ["wrapped"]
