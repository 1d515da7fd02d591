"""Graphs compiled for a GPU.

`lower` asks a device for generated kernels and for eager_cuda's own, `recorder` is the device that is asked, `plan`
gives what it was asked for its memory, and `executor` has it done again and again.
"""
