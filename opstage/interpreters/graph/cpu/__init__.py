"""Graphs compiled for the cores of the CPU.

`legal` says every layout op as strides, `clusters` gathers what one loop can do, `source` writes that loop, `products`
calls the BLAS, `arena` gives every intermediate result its place in one block of memory, and `plan` puts it together.
"""
