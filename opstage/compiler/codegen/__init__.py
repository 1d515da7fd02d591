"""Lowering to kernels for every target: lowered equations, fused clusters, and the memory plan.

`lowered` expresses layout ops as strides (`views`), `fusion` groups equations into loops, `formulas` has the source of
each op in a loop, `axes` the sizes and strides that a loop iterates over, and `arena` assigns offsets in one block of
memory to intermediate results (`occupancy` tracks which bytes are in use when). A `Target` describes the constraints of
a target's kernels.
"""
