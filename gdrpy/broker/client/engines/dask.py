"""Dask: a place is the address of a worker, which reads the region beside its tasks."""

from __future__ import annotations

import asyncio
import pickle
import sys
from collections.abc import Callable, Generator
from typing import Any

from gdrpy.broker.client import reading
from gdrpy.broker.client.reading import PATIENCE, Source
from gdrpy.errors import BrokerUnavailable, Error, Gone, Timeout

#: The place of a client, which other processes cannot ask.
_CLIENT = "client"


def place() -> str | None:
    """The address of this process's worker, _CLIENT if it has only a client, or None."""
    if "distributed" not in sys.modules:
        return None
    from distributed import Worker

    node = _node()
    if node is None:
        return None
    address: str = node.address if isinstance(node, Worker) else _CLIENT
    return address


def pieces(place: str, source: Source) -> Generator[Any, None, None]:
    """The region's description, then its bytes. Raises the reader's error, Gone, Timeout."""
    node = _node()
    address = _holder(node, place, source)
    description = _ask(node, address, reading.describe, source)
    yield description
    offset = 0
    while offset < description.nbytes:
        piece = _ask(node, address, reading.piece, source, offset)
        yield piece
        offset += piece.nbytes


def _node() -> Any:
    """This process's worker, else its client, else None."""
    from distributed import Client, Status, Worker

    for worker in list(Worker._instances):
        if worker.status in (Status.running, Status.paused):
            return worker
    try:
        return Client.current()
    except ValueError:
        return None


def _holder(node: Any, place: str, source: Source) -> Any:
    """The address of a worker that reaches the region's broker: the source's, else any."""

    async def look(workers: list[str] | None) -> dict[str, Any]:
        message = {"op": "run", **_call(reading.reaches, source)}
        found: dict[str, Any] = await node.scheduler.broadcast(
            msg=message, workers=workers, on_error="ignore"
        )
        return found

    for workers in ([place], None):
        if workers != [_CLIENT]:
            for address, reply in _wait(node, source, look, workers).items():
                if reply["status"] == "OK" and _result(reply):
                    return address
    raise BrokerUnavailable(
        f"copying {source}: no Dask worker reaches that broker, nor the process that it came "
        f"from ({place}): run a worker on {source.host}"
    )


def _ask(node: Any, address: str, function: Callable[..., Any], source: Source, *args: Any) -> Any:
    """The function's result on a worker."""
    from distributed import Worker

    async def run() -> Any:
        message = _call(function, source, *args)
        if isinstance(node, Worker):
            return await node.rpc(address).run(**message)
        replies = await node.scheduler.broadcast(msg={"op": "run", **message}, workers=[address])
        return replies[address]

    return _result(_wait(node, source, run))


def _call(*call: Any) -> dict[str, bytes]:
    """The message that makes a worker call a function in a thread beside its event loop."""
    return {"function": pickle.dumps(asyncio.to_thread), "args": pickle.dumps(call)}


def _result(reply: dict[str, Any]) -> Any:
    if reply["status"] == "OK":
        return reply["result"]
    from distributed.core import clean_exception

    _, error, _ = clean_exception(**reply)
    assert error is not None
    raise error


def _wait(node: Any, source: Source, ask: Callable[..., Any], *args: Any) -> Any:
    """The result of a coroutine function in the node's event loop. Raises Gone, Timeout."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise RuntimeError(
            f"copying {source}: this is an event loop, which must not wait for another machine: "
            f"open the reference in a task that is not a coroutine, or by "
            f"await asyncio.to_thread(reference.open)"
        )
    from distributed.utils import sync

    try:
        return sync(node.loop, ask, *args, callback_timeout=PATIENCE)
    except Error:
        raise
    except TimeoutError:
        raise Timeout(f"copying {source}: no answer by Dask within {PATIENCE:g} s") from None
    except OSError as error:
        raise Gone(f"copying {source}: Dask does not reach it: {error}") from error
