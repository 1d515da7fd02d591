"""One thread for each library: the tensors are small, and the workers of a test run share the cores."""

from __future__ import annotations

import threadpoolctl
import torch

torch.set_num_threads(1)
threadpoolctl.threadpool_limits(1)
