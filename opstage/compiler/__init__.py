"""Compilation: generated source of kernels (`codegen`), and machine code for the cores of the CPU (`native`)."""
