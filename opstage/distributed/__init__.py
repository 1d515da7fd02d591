"""Programs on a mesh of ranks: `Ranks` runs them, and `Varying` tracks values that differ between ranks."""

from __future__ import annotations
