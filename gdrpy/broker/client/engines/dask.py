"""Dask: a place is a worker's address, and that worker reads the region beside its tasks."""

from __future__ import annotations

import asyncio
import pickle
from typing import TYPE_CHECKING, Any

from distributed import Client, Status, Worker
from distributed.core import clean_exception
from distributed.utils import sync

from gdrpy.broker.client import copies, engines
from gdrpy.errors import BrokerUnavailable, Error, Gone, Timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from gdrpy.broker.client.attach import Identity

#: The place of a client, which nobody can ask.
_CLIENT = "client"


def place() -> str | None:
    """The address of this process's worker, or that it has a client alone."""
    node = _node()
    if node is None:
        return None
    address: str = node.address if isinstance(node, Worker) else _CLIENT
    return address


def pieces(place: str, identity: Identity) -> Generator[Any, None, None]:
    """What the region is, then its bytes. Raises what reading it there raises, Gone, Timeout."""
    node = _node()
    address = _holder(node, place, identity)
    description = _ask(node, address, _describe, identity)
    yield description
    offset = 0
    while offset < description.nbytes:
        piece = _ask(node, address, _piece, identity, offset)
        yield piece
        offset += piece.nbytes


def _node() -> Any:
    """This process's worker, else its client, else None."""
    for worker in list(Worker._instances):
        if worker.status in (Status.running, Status.paused):
            return worker
    try:
        return Client.current()
    except ValueError:
        return None


async def _reaches(*fields: Any) -> Any:
    return await asyncio.to_thread(copies.reaches, *fields)


async def _describe(*fields: Any) -> Any:
    return await asyncio.to_thread(copies.describe, *fields)


async def _piece(*fields: Any) -> Any:
    return await asyncio.to_thread(copies.piece, *fields)


def _holder(node: Any, place: str, identity: Identity) -> Any:
    """The address of a worker that reaches the region's broker: that it came from, else any."""

    async def look(workers: list[str] | None) -> dict[str, Any]:
        message = {"op": "run", **_call(_reaches, identity)}
        found: dict[str, Any] = await node.scheduler.broadcast(
            msg=message, workers=workers, on_error="ignore"
        )
        return found

    for workers in ([place], None):
        if workers != [_CLIENT]:
            for address, reply in _wait(node, identity, look, workers).items():
                if reply["status"] == "OK" and _result(reply):
                    return address
    raise BrokerUnavailable(
        f"copying {identity}: no Dask worker reaches that broker, nor the process that it came "
        f"from ({place}): run a worker on {identity.host}"
    )


def _ask(
    node: Any, address: str, function: Callable[..., Any], identity: Identity, *args: Any
) -> Any:
    """What the function returns on a worker."""

    async def run() -> Any:
        message = _call(function, identity, *args)
        if isinstance(node, Worker):
            return await node.rpc(address).run(**message)
        replies = await node.scheduler.broadcast(msg={"op": "run", **message}, workers=[address])
        return replies[address]

    return _result(_wait(node, identity, run))


def _call(function: Callable[..., Any], identity: Identity, *args: Any) -> dict[str, bytes]:
    arguments = (*identity.fields(), *args)
    return {"function": pickle.dumps(function), "args": pickle.dumps(arguments)}


def _result(reply: dict[str, Any]) -> Any:
    if reply["status"] == "OK":
        return reply["result"]
    _, error, _ = clean_exception(**reply)
    assert error is not None
    raise error


def _wait(node: Any, identity: Identity, ask: Callable[..., Any], *args: Any) -> Any:
    """What a coroutine function returns in the node's event loop. Raises Gone, Timeout."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise RuntimeError(
            f"copying {identity}: this is an event loop, which must not wait for another machine: "
            f"use the region in a task that is no coroutine, or await asyncio.to_thread(...)"
        )
    try:
        return sync(node.loop, ask, *args, callback_timeout=engines.PATIENCE)
    except Error:
        raise
    except TimeoutError:
        raise Timeout(
            f"copying {identity}: no answer by Dask within {engines.PATIENCE:g} s"
        ) from None
    except OSError as error:
        raise Gone(f"copying {identity}: Dask does not reach it: {error}") from error
