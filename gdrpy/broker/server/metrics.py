"""The broker's metrics for Prometheus, by HTTP: one request at a time, in a separate thread."""

from __future__ import annotations

import contextlib
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from gdrpy.broker.protocol import CPU_DEVICE
from gdrpy.errors import Error

log = logging.getLogger(__name__)

#: Seconds that one scrape may take, because other scrapes wait meanwhile.
PATIENCE = 5.0
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: The result of :meth:`gdrpy.broker.server.service.Service.numbers`.
Numbers = dict[str, Any]


class Metrics(HTTPServer):
    """``GET /metrics`` at a host and port. ``about`` are labels that describe the broker.

    ``numbers`` is called for each request, in the serving thread. Raises OSError if the address
    cannot be bound.
    """

    request_queue_size = 16

    def __init__(
        self, address: tuple[str, int], numbers: Callable[[], Numbers], about: dict[str, str]
    ) -> None:
        self._numbers = numbers
        self._about = about
        self._began = time.time()
        self.address_family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]
        super().__init__(address, _Handler)
        threading.Thread(target=self.serve_forever, name="metrics", daemon=True).start()

    @property
    def host(self) -> str:
        """The bound address, as in a URL."""
        host = str(self.server_address[0])
        return f"[{host}]" if ":" in host else host

    @property
    def port(self) -> int:
        """The bound port, also if port 0 was requested."""
        return int(self.server_address[1])

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer's would ask the name server

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Serve one request, and end it after PATIENCE seconds."""
        end = threading.Timer(PATIENCE, _shut_down, [request])
        end.daemon = True
        end.start()
        try:
            super().finish_request(request, client_address)
        finally:
            end.cancel()

    def handle_error(self, request: Any, client_address: Any) -> None:
        del request
        log.debug("a scrape from %s failed", client_address, exc_info=True)

    def text(self) -> str:
        """All metrics in Prometheus' text format. Raises TimeoutError, Error."""
        return "".join(_lines(self._numbers(), self._about, self._began))


class _Handler(BaseHTTPRequestHandler):
    """One connection, one request."""

    server: Metrics

    def do_GET(self) -> None:
        """Reply with the metrics; ignore parameters of the URL."""
        if self.path.partition("?")[0] not in ("/", "/metrics"):
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        try:
            body = self.server.text().encode()
        except (TimeoutError, Error) as error:
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, explain=str(error))
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", _CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(f"metrics: {format}", *args)


def _shut_down(request: socket.socket) -> None:
    with contextlib.suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


def _lines(numbers: Numbers, about: dict[str, str], began: float) -> Iterator[str]:
    def labels(device: str) -> dict[str, str]:
        """The labels of a device: the broker's number and the UUID."""
        if int(device) == CPU_DEVICE:
            return {"device": "cpu"}
        return {"device": device, "uuid": numbers["uuids"].get(device, "")}

    def by_device(name: str) -> list[tuple[dict[str, str], float]]:
        return [(labels(device), nbytes) for device, nbytes in numbers[name].items()]

    yield from _metric("info", "The broker.", [(about, 1)])
    started = "When the broker started, in Unix time."
    yield from _metric("start_time_seconds", started, [({}, began)])
    for name, meaning in (
        ("regions", "Regions, including those without a name."),
        ("names", "Names, each of one region."),
        ("connections", "Connections of clients."),
        ("sessions", "Sessions: connections, and processes that held regions at a restart."),
        ("leases", "Regions that sessions hold, counted once for each session."),
    ):
        yield from _metric(name, meaning, [({}, numbers[name])])
    used, limits = by_device("used"), by_device("limits")
    yield from _metric("used_bytes", "Bytes of a device that regions use.", used)
    yield from _metric("limit_bytes", "Bytes of a device that regions may use.", limits)
    users = ((key.split("/"), nbytes) for key, nbytes in numbers["users"].items())
    of_users = [({**labels(device), "uid": uid}, nbytes) for (device, uid), nbytes in users]
    yield from _metric("user_bytes", "Bytes of a device that a user's regions use.", of_users)
    requests = [({"op": op}, count) for op, count in sorted(numbers["requests"].items())]
    yield from _metric("requests_total", "Requests, by operation.", requests, "counter")


def _metric(
    name: str, meaning: str, values: list[tuple[dict[str, str], float]], kind: str = "gauge"
) -> Iterator[str]:
    yield f"# HELP gdrpy_broker_{name} {meaning}\n# TYPE gdrpy_broker_{name} {kind}\n"
    for labels, value in values:
        pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        braced = f"{{{pairs}}}" if pairs else ""
        yield f"gdrpy_broker_{name}{braced} {value}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
