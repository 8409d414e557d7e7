"""How the CPU caches a mapping."""

import enum


class MappingType(enum.IntEnum):
    """How the CPU caches a mapping: decides how copies to and from it are made."""

    WRITE_COMBINED = 1
    CACHED = 2
    DEVICE = 3
