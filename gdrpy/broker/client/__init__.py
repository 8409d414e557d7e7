"""The broker as its clients see it."""
