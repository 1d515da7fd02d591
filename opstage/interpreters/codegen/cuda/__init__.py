"""The text of generated kernels for a GPU, in the language of `gpu`, and what it calls."""
