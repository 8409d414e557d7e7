"""The daemon that owns regions."""
