"""Clients of the broker."""
