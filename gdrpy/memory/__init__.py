"""Memory that this process holds, and its mappings for the CPU."""
