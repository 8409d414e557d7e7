"""gdrpy.broker.temporary(): a broker for the length of a block."""

from __future__ import annotations

import re
import socket
import time
from pathlib import Path

import pytest

import gdrpy
from gdrpy.broker import temporary


class TestTemporaryBroker:
    def test_answers_in_its_block_and_ends_with_it(self) -> None:
        with temporary() as path, gdrpy.connect(path) as broker:
            assert broker.list() == []
        with pytest.raises(gdrpy.BrokerUnavailable, match="no broker answers at"):
            gdrpy.connect(path)

    def test_that_cannot_serve_does_not_enter_the_block_and_says_why(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            reason = (
                f"status 2: error: --metrics: cannot serve at 127.0.0.1 port {port}: Address al"
            )
            with (
                pytest.raises(gdrpy.BrokerUnavailable, match=re.escape(reason)),
                temporary("--metrics", f"127.0.0.1:{port}"),
            ):
                raise AssertionError("the block was entered")

    def test_shows_at_its_end_what_the_broker_logged(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with temporary() as path:
            Path(path).unlink()
            while not Path(path).exists():
                assert not capsys.readouterr().err
                time.sleep(0.01)
        assert (
            capsys.readouterr()
            .err.strip()
            .endswith(f"the socket {path} was removed: made it again")
        )

    def test_imports_nothing_from_the_current_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "gdrpy.py").write_text("raise AssertionError('imported')")
        monkeypatch.chdir(tmp_path)
        with temporary() as path, gdrpy.connect(path) as broker:
            assert broker.list() == []
