"""The C core: the Mapping and Flag types, and (through cffi) the backends' system calls."""
