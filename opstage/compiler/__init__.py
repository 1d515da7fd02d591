"""Compilation: generated source of kernels (`codegen`), machine code for the
cores of the CPU (`native`), and GPUs (`gpu`)."""
