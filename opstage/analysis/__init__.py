"""Abstract interpretation: properties of a program for every allowed size, or for every input in a box.

`Interpretation` runs closed bodies on the facts of domains: `dependence`, `ranges`, `levels`, `rows`. `Intervals` and
`Relaxed` are interpreters whose refs are bounds, so their bounds are programs themselves.
"""
