"""Lowering up to kernels, for every target: lowered equations, fused clusters, and the memory plan.

`lowered` says every layout op as strides (`views`), `fusion` groups what one loop can do, `formulas` has the text of
each op in it, `axes` the sizes and strides that the loop goes through, and `arena` gives every intermediate result its
place in one block of memory (`occupancy` knows which bytes are taken when). A `Target` says what a target's kernels
want.
"""
