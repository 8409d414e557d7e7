"""Named regions for every process of the machine: a daemon that owns them, and its clients."""
