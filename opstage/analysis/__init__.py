"""Abstract interpretation: what holds of a program for every allowed size, or for every input in a box.

`Interpretation` runs closed bodies on facts of domains: `dependence`, `ranges`, `levels`, `rows`. `Intervals` and
`Relaxed` are interpreters whose refs are bounds, so that bounds are programs themselves.
"""
