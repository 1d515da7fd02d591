"""Interval bounds over any interpreter: each ref is a pair of refs, a lower and an upper bound."""

from .interpreter import Interval, Intervals

__all__ = ["Interval", "Intervals"]
