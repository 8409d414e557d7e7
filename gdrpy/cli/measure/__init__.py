"""How fast copies, signals and calls are on this machine."""
