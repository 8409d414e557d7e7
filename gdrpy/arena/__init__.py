"""Blocks of GPU memory for libraries that take an allocator, which sleep and wake."""
