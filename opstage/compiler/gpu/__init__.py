"""A GPU behind one interface: `device` declares it, `driver` runs it, `simulator` runs kernels in Python."""
