"""Each trial once, and what they say of brokers that are broken; ``trials.py`` is the program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("trials.py")

#: What breaks a broker, the trial that finds it, and what that calls it.
BROKEN = {
    "forgets that a lease was granted twice": (
        """
        from gdrpy.broker.server.table import Table
        grant = Table.grant
        def forgetful(self, session, region, *kind):
            if region.number not in session.regions:
                grant(self, session, region, *kind)
        Table.grant = forgetful
        """,
        "leases are counted",
        "lost",
    ),
    "frees memory that is still held": (
        """
        from gdrpy.broker.server.table import Table
        release = Table.release
        def hasty(self, session, region):
            while region.number in session.regions:
                release(self, session, region)
        Table.release = hasty
        """,
        "leases are counted",
        "lost",
    ),
    "lets readers write": (
        """
        from gdrpy.broker.server import service
        service.allowed = lambda who, region, wanted: True
        """,
        "another user gets",
        "unauthorised",
    ),
    "hands readers the descriptor of writers": (
        """
        import os
        from gdrpy.broker.server import memory
        memory.readonly = os.dup
        """,
        "readers cannot write",
        "unauthorised",
    ),
    "tells everybody of every region": (
        """
        from gdrpy.broker.server import watchers
        watchers.allowed = lambda who, region, wanted: True
        """,
        "watchers hear",
        "unauthorised",
    ),
    "keeps a descriptor of each connection": (
        """
        import os
        from gdrpy.broker.server.loop import Server
        close = Server._close
        def keep(self, connection):
            if connection.open:
                os.dup(connection.number)
            close(self, connection)
        Server._close = keep
        """,
        "come and go",
        "grown",
    ),
    "takes memory for each client and keeps it": (
        """
        from gdrpy.broker.server.service import Service
        begin, kept = Service.begin, []
        def keep(self, who, request):
            kept.append(bytearray(b"x") * (8 << 20))
            return begin(self, who, request)
        Service.begin = keep
        """,
        "cannot be seen --rounds 7",
        "grown",
    ),
    "forgets what was sealed when it is killed": (
        """
        from gdrpy.broker.server import records
        from gdrpy.broker.server.table import Table
        commit = Table.commit
        def forgetful(self, record):
            (Table.apply if isinstance(record, records.SealedNow) else commit)(self, record)
        Table.commit = forgetful
        """,
        "after a crash",
        "lost",
    ),
}


class Trials:
    """A run of the program: how it ended, what it printed, and what it wrote."""

    def __init__(self, folder: Path, *words: str) -> None:
        counts = folder / "counts.json"
        done = subprocess.run(
            [sys.executable, PROGRAM, "--json", counts, *words],
            env=os.environ | {"PYTHONPATH": str(PROGRAM.parents[2])},
            capture_output=True,
            text=True,
        )
        self.status, self.printed, self.said = done.returncode, done.stdout, done.stderr
        self.counts: dict[str, Any] = json.loads(counts.read_text())


class TestTrials:
    def test_know_nothing_of_the_package(self) -> None:
        code = "import sys, trials; assert not any(m.split('.')[0] == 'gdrpy' for m in sys.modules)"
        subprocess.run([sys.executable, "-c", code], cwd=PROGRAM.parent, check=True)

    def test_all_hold_once(self, tmp_path: Path) -> None:
        made = Trials(tmp_path, "--patience", "45")
        assert made.counts["failures"] == []
        assert made.status == 0
        left_out = set(made.counts["left_out"])
        ran = {name: one["runs"] for name, one in made.counts["trials"].items()}
        assert ran == {name: int(name not in left_out) for name in ran}
        assert len(ran) > 25
        assert bool(left_out) == (os.geteuid() != 0)
        for verdict in ("lost", "unauthorised", "grown", "failed_otherwise"):
            assert made.counts[verdict] == 0
        assert made.counts["counts"]["gets"] == 1000
        assert made.counts["counts"]["brokers killed"] >= 5
        assert max(map(len, made.printed.splitlines())) <= 60

    @pytest.mark.parametrize("how", BROKEN)
    def test_find_a_broker_that(self, how: str, tmp_path: Path) -> None:
        patch, chosen, verdict = BROKEN[how]
        words, _, rounds = chosen.partition(" --rounds ")
        program = tmp_path / "broken.py"
        main = "if __name__ == '__main__':\n    from gdrpy.cli import main\n    main()\n"
        program.write_text(textwrap.dedent(patch) + main)
        serve = f"{sys.executable} {program} serve"
        made = Trials(
            tmp_path, "--patience", "5", "--program", serve, "--rounds", rounds or "1", words
        )
        if made.counts["left_out"]:
            assert "take several users" in made.printed
            return
        assert made.status == 1
        assert made.counts[verdict] == 1, made.said
        assert f"FAILED {made.counts['failures'][0]['trial']}" in made.said
