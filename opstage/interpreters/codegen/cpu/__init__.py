"""The text of generated kernels for the CPU, and what it calls."""
