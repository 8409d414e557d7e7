"""docs/kernel-module.md: its YAML is YAML, and the messages it explains are those of insmod.sh."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml


@pytest.fixture
def page(checkout: Path) -> str:
    return (checkout / "docs/kernel-module.md").read_text()


class TestKubernetesExamples:
    def test_ask_for_the_node(self, page: str) -> None:
        first, arguments, second = map(
            yaml.safe_load, re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
        )
        assert first["kind"] == second["kind"] == "Pod"
        (volume,) = first["spec"]["volumes"]
        assert volume["hostPath"] == {"path": "/dev/gdrdrv", "type": "CharDevice"}
        device = yaml.safe_load(arguments["args"][1])
        assert device["groups"][0]["paths"] == [{"path": "/dev/gdrdrv"}]
        assert second["spec"]["containers"][0]["resources"]["limits"]["squat.ai/gdrdrv"] == 1


class TestTroubleshooting:
    def test_explains_messages_that_there_are(self, page: str, checkout: Path) -> None:
        script = re.sub(r'" \\\n\t+"', " ", (checkout / "insmod.sh").read_text())
        table = page.partition("## Troubleshooting")[2]
        messages = [
            message
            for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
            for message in re.findall(r"`(.+?)`", row)
        ]
        assert len(messages) > 10
        assert [message for message in messages if message not in script] == []


class TestParameters:
    def test_are_the_modules(self, page: str, driver: Path) -> None:
        source = "".join(path.read_text() for path in sorted(driver.glob("*.c")))
        named = re.findall(r"^module_param(?:_named)?\((\w+),", source, re.MULTILINE)
        table = page.partition("### Parameters")[2].partition("###")[0]
        assert sorted(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == sorted(named)
