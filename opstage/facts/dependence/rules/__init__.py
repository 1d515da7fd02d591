"""Rules by which ops read, a family a file; table.py has them by primitive."""
