"""Compilation: generated source of kernels (`codegen`, from the formulas in `scalar`), machine code for the cores
of the CPU (`native`), and GPUs (`gpu`).
"""
