"""What the end-to-end tests are made of: the real binary, clients, and a disk that misbehaves."""
