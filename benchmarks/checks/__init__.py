"""How each side checks the shapes of a large model: `parts(workload)` gives a function for the forward pass and one for
the whole step, neither of which allocates the model."""
