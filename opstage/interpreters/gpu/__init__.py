"""A GPU, and what its kernels are written in: `device/` is the machine behind one interface, real or simulated."""
