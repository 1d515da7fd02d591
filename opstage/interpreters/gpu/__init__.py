"""A GPU and the language of its kernels: `device/` is one interface to a real or simulated machine."""
