"""``gdrpy rm``."""

from __future__ import annotations

import pytest

import gdrpy


class TestRm:
    def test_deletes_what_it_can(self, put, json_of):
        put("a")
        put("c")
        status, said = json_of("rm", "a", "b", "c")
        assert status == 1
        assert said["deleted"] == ["a", "c"]
        assert list(said["errors"]) == ["b"]
        assert (
            said["errors"]["b"] == "rm: there is no region of the name 'b': 'gdrpy ls' lists them"
        )
        assert json_of("ls")[1]["regions"] == []

    def test_recursive_deletes_what_is_below_the_name_too(self, put, json_of):
        for name in ("a", "a/b", "a/b/c", "ab", "b/c"):
            put(name)
        assert json_of("rm", "-r", "a", "b", "a/b")[1] == {
            "deleted": ["a", "a/b", "a/b/c", "b/c"],
            "errors": {},
        }
        assert [region["name"] for region in json_of("ls")[1]["regions"]] == ["ab"]

    def test_recursive_of_nothing_ends_with_1(self, broker, json_of):
        status, said = json_of("rm", "-r", "a")
        why = "rm: there is no region of the name 'a': 'gdrpy ls' lists them"
        assert (status, said["errors"]) == (1, {"a": why})

    def test_of_a_named_channel_takes_its_host_memory_and_ends_it(self, broker, json_of):
        client = gdrpy.connect(broker.socket)
        channel = gdrpy.Channel(16, 8, broker=client, name="orders")
        end = gdrpy.channel.KernelEnd(client, "orders")
        assert json_of("rm", "orders") == (0, {"deleted": ["orders"], "errors": {}})
        assert not {"orders", "orders/host"} & {info.name for info in client.list()}
        with pytest.raises(gdrpy.Closed, match="'orders' was deleted"):
            end.wait(timeout=60)
        end.close()
        channel.close()
        with gdrpy.Channel(32, 16, broker=client, name="orders") as other:
            assert other.pushed == 0
        client.close()

    def test_of_half_a_channel_deletes_that_half(self, broker, json_of):
        client = gdrpy.connect(broker.socket)
        gdrpy.Channel(16, 8, broker=client, name="orders").close()
        client.delete("orders/host")
        assert json_of("rm", "orders") == (0, {"deleted": ["orders"], "errors": {}})
        assert client.list() == []
        client.close()
