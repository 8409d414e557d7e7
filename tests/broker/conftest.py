"""A broker for the tests, as a program of its own."""

from brokers import broker_process, start_broker

__all__ = ["broker_process", "start_broker"]
