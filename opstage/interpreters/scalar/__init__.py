"""Scalar formulas, each written once for every target that compiles them.

A formula comes from a factory, `silu(real, exp)`, for numbers of type `real` (`numpy.float32`, `numpy.float64`). It is
computed in that type, because its constants are of that type too; a plain `0.5` would promote a float32 computation to
float64. Functions whose best form depends on the target (exp, erf) are parameters. The formulas are plain Python, so
they can also be called directly.
"""
