"""What each op reads, a family a file; table.py has them by primitive."""
