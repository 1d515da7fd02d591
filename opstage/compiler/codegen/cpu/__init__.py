"""Source of generated kernels for the CPU, and the functions it calls."""
