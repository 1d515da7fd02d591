"""One module a side: `step(workload)` makes a function that does one whole training step and returns the loss.

`step` gives None for a workload that the side cannot do in reasonable time. Importing the module imports all that the
step will, so that memory can be told from what imports take.
"""
