"""Kernels of composites, and those that make first values, on a GPU."""

from __future__ import annotations

from tests.cuda.test_filling import *  # noqa: F403  # pytest runs what stands here
from tests.cuda.test_fused import *  # noqa: F403
