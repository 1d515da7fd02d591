"""Graphs compiled for the CPU.

`library` has hand-written loops, `products` calls the BLAS, codegen generates the loops of clusters, and `plan`
combines them.
"""
