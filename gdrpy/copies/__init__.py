"""The choice of a copy path, and copies by the GPU."""
