"""One module a side: `step(workload, device, precision)` makes a function that does one whole training step and returns
its loss, once all of the step is done.

On a GPU, "cuda", the batch is the host's and goes there in every step, and products and convolutions are of the
precision "fp32" or "tf32". `peak_of_gpu()` is the most of its memory that was asked for at a time.

`step` gives None for a workload that the side cannot do in reasonable time. Importing the module imports all that the
step will, so that memory can be told from what imports take.
"""
