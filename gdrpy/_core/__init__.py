"""The C core: extension types such as Mapping and Flag and, through cffi, the backends."""
