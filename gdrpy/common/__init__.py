"""Shared by all packages: checks of arguments, resources that close, element types, DLPack."""
