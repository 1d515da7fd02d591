"""One module a side: `step(workload)` makes a function that does one whole training step and returns the loss."""
