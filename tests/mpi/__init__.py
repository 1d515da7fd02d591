"""Several processes over MPI, as users start them; `make mpi-tests` runs this folder in an environment that has MPI."""
