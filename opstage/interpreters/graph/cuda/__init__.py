"""Graphs compiled for a GPU.

`source` writes the kernel of a cluster, `lower` asks a device for these and for eager_cuda's own kernels, `recorder` is
the device that is asked, `plan` gives what it was asked for its memory, and `executor` has it done again and again.
"""
