"""Small architectures, each written twice as a user would write it: as a PyTorch module, and as a program over Ops."""
