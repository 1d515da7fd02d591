"""Source of generated kernels for a GPU, in the kernel language of `gpu`, and the functions it calls."""
