"""Graphs compiled for a GPU.

`lower` lowers ops to launches of generated kernels and of eager_cuda's kernels, `recorder` is the device that records
these launches, `plan` assigns memory to them, and `executor` replays them.
"""
