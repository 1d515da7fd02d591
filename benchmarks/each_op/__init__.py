"""Single ops, each as an expression over Ops and as one of PyTorch, with arguments of a size."""
