"""A client that does a little of everything and is killed at some step: run by the kill tests.

For each number of a step that it reads it forks such a client, and says its exit status.
"""

import os
import sys

from killing import Steps
from rawclient import RawClient, allocation


def work(path: str) -> None:
    """A little of everything."""
    with RawClient(path) as client:
        kept = client.allocate("k/kept")
        kept.write(b"bytes")
        client.allocate(None, device=0)
        draft = client.create("k/kept")
        client.ok("publish", region=draft["region"])
        client.get("k/kept")
        client.ok("get_many", names=["k/kept"] * 3, readonly=False, gpu=False)
        client.ok("watch", prefix="")
        client.release(kept["region"])
        client.send("seal", region=draft["region"])
        client.receive()
        client.send("delete", name="k/kept")
        client.receive()
        client.send("allocate", **allocation("k/last"))
        client.receive()


def main(path: str) -> None:
    """Serve the test."""
    steps = Steps()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            steps.arm(int(line))
            work(path)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
