"""Graphs compiled for the cores of the CPU.

`source` writes the loop of a cluster, `library` has the hand-written ones, `products` calls the BLAS, and `plan` puts
all of it together.
"""
