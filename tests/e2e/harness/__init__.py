"""Building blocks of the end-to-end tests: the real binary, clients, and a disk that fails on
command."""
