"""Graphs compiled for the CPU.

`library` has hand-written loops, codegen generates the loops of clusters, and `plan` combines them with BLAS calls.
"""
