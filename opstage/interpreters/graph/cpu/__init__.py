"""Graphs compiled for the cores of the CPU.

`source` writes the loop of a cluster, `library` has those written by hand, `products` calls the BLAS, and `plan` puts
all of it together.
"""
