"""What the trials stand on: brokers that are watched, processes of any user, and what is counted.

Nothing here imports gdrpy: the brokers are programs, and the clients know the protocol's page.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import signal
import sys
import time
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from brokers import await_descriptors, await_one_journal, descriptors, resident
from rawclient import RawClient, Reply, acting_as, become

sys.path.append(str(Path(__file__).parents[1]))
from serving import SERVE, BrokerProcess

__all__ = ["SERVE"]

#: Whose things are looked after, and who may not touch them; root's alone to be.
OWNER, STRANGER = 40002, 40001
#: What `gdrpy serve` is told, and how many regions a user may have by that.
REGIONS = 512
WORDS = ["--mode", "0666", "--max-regions", str(REGIONS), "--linger", "300"]
#: Seconds after which a client's process or a trial is taken for hanging.
HANGS = 900
#: Descriptors of memory, by how they are called.
_MEMORY = ("/memfd:gdrpy-host", "/memfd:gdrpy-sim")


class Lost(AssertionError):
    """What a client was promised, or had, is not there."""


class Unauthorised(AssertionError):
    """A user got, did or heard what only others may."""


class Grown(AssertionError):
    """Memory, descriptors, leases or sessions that should be gone are not."""


class Ended(Exception):
    """A process ended before its work."""


class Watched:
    """A broker with regions that nobody may change, and what it has when all is quiet."""

    def __init__(self, bed: Bed, folder: Path, program: list[str], words: list[str]) -> None:
        self._bed = bed
        folder.mkdir(mode=0o755)
        # Brokers end with the trials, however these end.
        program = ["setpriv", "--pdeathsig", "TERM", *program]
        self.process = BrokerProcess(folder, words, {}, program)
        self._expected: dict[str, bytes] = {}
        self._seen = 0
        self.process.start()
        self.path = self.process.socket
        try:
            self._begin()
        except BaseException:
            self.drop()
            raise

    def _begin(self) -> None:
        """Make what is looked after, and look at what there is."""
        bed = self._bed
        self.client = RawClient(self.path, timeout=bed.patience)
        for number in range(4):
            name, content = f"kept/{number}", os.urandom(32)
            grant = self.client.allocate(name, metadata=content, device=-1 if number else 0)
            grant.write(content)
            if number == 1:
                self.client.ok("seal", region=grant["region"])
            self.client.release(grant["region"])
            self._expected[name] = content
        self.check()
        self._quiet = self._numbers()
        for _ in bed.until("the keeper has all memory"):
            if sum(one.startswith(_MEMORY) for one in descriptors(self.keeper)) == 4:
                break
        await_one_journal(self.process.pid, bed.patience)
        self._open = [descriptors(pid) for pid in (self.process.pid, self.keeper)]

    @property
    def keeper(self) -> int:
        """Its keeper's process number."""
        found: list[int] = []
        for _ in self._bed.until("the broker has one keeper"):
            found = [one for one in self.process.family() if one != self.process.pid]
            if len(found) == 1:
                break
        return found[0]

    def restart(self) -> None:
        """Kill the broker and start the next one."""
        self.process.restart()
        session = self.client.session
        self.client.reopen()
        self.client.ok("resume", session=session, leases=[])

    def check(self) -> None:
        """What nobody may touch is as it was, and its owner is answered."""
        for name, content in self._expected.items():
            reply = self.client.call("get", name=name, readonly=True, gpu=False)
            if "error" in reply or reply.bytes(32) != content or reply["metadata"] != content:
                raise Lost(f"{name} is not what it was: {reply}")
            if reply["sealed"] != (name == "kept/1"):
                kind = Unauthorised if reply["sealed"] else Lost
                raise kind(f"{name} is sealed: {reply['sealed']}")
            self.client.release(reply["region"])

    def _numbers(self) -> dict[str, int]:
        found = self.client.ok("status")
        return {key: found[key] for key in ("regions", "names", "sessions", "leases")}

    def settle(self) -> None:
        """Wait until all is as it is when there are no other clients."""
        deadline = time.monotonic() + self._bed.patience
        while (found := self._numbers()) != self._quiet:
            if any(found[key] < self._quiet[key] for key in found):
                raise Lost(f"there were {self._quiet}, and are {found}")
            if time.monotonic() > deadline:
                raise Grown(f"there were {self._quiet}, and are {found}")
            time.sleep(0.002)
        self.check()
        for pid, wanted in zip((self.process.pid, self.keeper), self._open, strict=True):
            try:
                await_descriptors(pid, wanted, self._bed.patience)
            except AssertionError as error:
                raise Grown(f"process {pid} has these open more than before: {error}") from None
        with self.process.log_file.open() as log:
            log.seek(self._seen)
            new = log.read()
            self._seen = log.tell()
        errors = [line for line in new.splitlines() if " ERROR " in line or "Traceback" in line]
        assert not errors, errors

    def resident(self) -> tuple[int, int]:
        """KiB of memory that the broker and its keeper take."""
        return resident(self.process.pid), resident(self.keeper)

    def finish(self) -> None:
        """End it; it leaves nothing."""
        self.client.close()
        self.process.finish()

    def drop(self) -> None:
        """End it, whatever became of it."""
        for pid in self.process.family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Child:
    """Some work in a process of its own."""

    def __init__(self, bed: Bed, work: Callable[[], Any], uid: int) -> None:
        self._bed = bed
        self._pipe, answers = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                answer = self._answer(work, uid)
                os.write(answers, answer)  # at once, or it would be half of one that is killed
            finally:
                os._exit(0)
        os.close(answers)

    def _answer(self, work: Callable[[], Any], uid: int) -> bytes:
        result: Any
        try:
            self._bed.be_a_child()
            become(uid)
            signal.alarm(HANGS)
            done, result = True, work()
        except BaseException as error:
            error.add_note(traceback.format_exc())
            done, result = False, error
        return pickle.dumps((done, result, self._bed.counted, self._bed.refusals))

    def result(self) -> Any:
        """What the work returned. Raises what it raised, and Ended if it was killed before."""
        pid, self.pid = self.pid, 0
        try:
            with os.fdopen(self._pipe, "rb") as pipe:
                answer = pipe.read()
        except BaseException:
            os.kill(pid, signal.SIGKILL)
            raise
        finally:
            _, status = os.waitpid(pid, 0)
        if not answer:
            raise Ended(f"a client ended with status {os.waitstatus_to_exitcode(status)}")
        done, result, counted, refusals = pickle.loads(answer)
        self._bed.counted.update(counted)
        self._bed.refusals.update(refusals)
        if not done:
            raise result
        return result

    def kill(self) -> None:
        """End it in the middle of things. Raises what its work raised before that."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            with contextlib.suppress(Ended):
                self.result()


class Bed:
    """What a trial is given: its broker, clients and processes, chance, and where to count."""

    def __init__(self, folder: Path, program: list[str], patience: float) -> None:
        self.folder, self.program = folder, program
        #: Seconds after which something that takes a fraction of one is taken for hanging.
        self.patience = patience
        self.root = os.geteuid() == 0
        self.counted: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.random = random.Random()
        #: How much of everything: 1 to 10.
        self.scale = 1
        self.broker: Watched
        self.stack = contextlib.ExitStack()
        self._clients: weakref.WeakKeyDictionary[RawClient, int] = weakref.WeakKeyDictionary()

    def client(self, uid: int = OWNER, path: str = "", **options: Any) -> RawClient:
        """A connection of some user, until the trial is over."""
        with acting_as(self.user(uid)):
            made = RawClient(path or self.broker.path, **{"timeout": self.patience, **options})
        self._clients[made] = uid
        return self.stack.enter_context(made)

    def reopen(self, client: RawClient) -> int:
        """Connect a client again, after the broker's end; its session before."""
        before = client.session
        with acting_as(self.user(self._clients[client])):
            client.reopen()
        return before

    def user(self, uid: int) -> int:
        """A user who can be had: only root can be somebody else."""
        return uid if self.root else os.geteuid()

    def start(self, work: Callable[[], Any], uid: int = OWNER) -> Child:
        """Start some work in a process of a user's."""
        child = Child(self, work, self.user(uid))
        self.stack.callback(child.kill)
        return child

    def each(self, count: int, work: Callable[[int], Any], uid: int = OWNER) -> list[Any]:
        """What some work returns in so many processes at once; it is given their numbers."""
        children = [self.start(lambda index=index: work(index), uid) for index in range(count)]
        return [child.result() for child in children]

    def be_a_child(self) -> None:
        """Leave the parent's connections and counts to the parent."""
        for client in (*self._clients, self.broker.client):
            client.sock.close()
        self.counted.clear()
        self.refusals.clear()

    def count(self, what: str, much: int = 1) -> None:
        """Count something that was tried."""
        self.counted[what] += much

    def refused(self, error: str, client: RawClient, op: str, /, **fields: Any) -> Reply:
        """Ask for what is to be refused by an error, and by no other."""
        reply = client.call(op, **fields)
        if reply.get("error") != error:
            words = f"{op} {str(fields)[:200]} was to be refused by {error}: {reply}"
            raise Unauthorised(words) if "error" not in reply else AssertionError(words)
        self.refusals[error] += 1
        return reply

    def same(self, found: object, expected: object, what: str) -> None:
        """Something is as it was left."""
        if found != expected:
            raise Lost(f"{what}: found {str(found)[:200]}, expected {str(expected)[:200]}")

    def until(self, what: str) -> Iterator[None]:
        """Go round until it holds. Raises TimeoutError."""
        deadline = time.monotonic() + self.patience
        while time.monotonic() < deadline:
            yield
            time.sleep(0.002)
        raise TimeoutError(f"it was waited in vain until {what}")


Trial = Callable[[Bed], None]

#: All of them by name; those that kill the broker, and those that take several users.
TRIALS: dict[str, Trial] = {}
KILLING: set[str] = set()
AS_OTHERS: set[str] = set()


def trial(killing: bool = False, others: bool = False) -> Callable[[Trial], Trial]:
    """A trial by its name, of the broker that lives or of the one that is killed."""

    def note(made: Trial) -> Trial:
        name = made.__name__.replace("_", " ")
        TRIALS[name] = made
        if killing:
            KILLING.add(name)
        if others:
            AS_OTHERS.add(name)
        return made

    return note


def held(client: RawClient, region: int) -> dict[int, int]:
    """Leases of a region by process."""
    holders = client.ok("stat", region=region)["holders"]
    return {holder["pid"]: holder["count"] for holder in holders}
