"""Drafts that are published in one step."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import gdrpy
from brokers import Broker
from gdrpy import aio


@pytest.fixture
def connected(broker: Broker) -> Iterator[gdrpy.Broker]:
    """A client of the test's broker."""
    with gdrpy.connect(broker.path) as made:
        yield made


@pytest.fixture
def drafts(connected: gdrpy.Broker) -> Iterator[list[gdrpy.BrokerRegion]]:
    """Drafts of "layer/0" to "layer/3"; the second replaces version 1."""
    connected.put("layer/1", b"old", "cpu").close()
    made = [connected.create(f"layer/{number}", 3, "cpu") for number in range(4)]
    for draft in made:
        draft.write(b"new")
    yield made
    for draft in made:
        draft.close()


def contents(client: gdrpy.Broker) -> dict[str, bytes]:
    """The bytes of the regions by their names."""
    return {str(info.name): client.get(str(info.name), gpu=False).read() for info in client.list()}


class TestPublishMany:
    def test_gives_all_of_them_their_names(self, connected, drafts):
        assert connected.publish_many(drafts) == [1, 2, 1, 1]
        assert [draft.version for draft in drafts] == [1, 2, 1, 1]
        assert contents(connected) == {f"layer/{number}": b"new" for number in range(4)}

    def test_tells_watchers_of_each(self, broker, connected, drafts):
        with gdrpy.connect(broker.path) as other, other.watch("layer/", timeout=30) as watch:
            connected.publish_many(drafts)
            events = [next(watch) for _ in drafts]
        assert [(event.kind, event.name) for event in events] == [
            ("published", f"layer/{number}") for number in range(4)
        ]

    def test_changes_nothing_if_one_may_not_be_published(self, connected, drafts):
        anonymous = connected.allocate(None, 3, "cpu")
        twin = connected.create("layer/3", 3, "cpu")
        for one, why in (anonymous, "has no name"), (twin, "two of the regions have the name"):
            with pytest.raises(gdrpy.InvalidRequest, match=f"^publish: .*{why}"):
                connected.publish_many([*drafts, one])
            assert contents(connected) == {"layer/1": b"old"}
        anonymous.close()
        twin.close()

    def test_takes_those_that_are_published_already_as_they_are(self, connected, drafts):
        drafts[2].publish()
        assert connected.publish_many(drafts) == [1, 2, 1, 1]
        assert connected.publish_many(drafts) == [1, 2, 1, 1]

    def test_takes_no_draft_of_the_name_of_one_that_is_published_already(self, connected, drafts):
        with connected.get("layer/1", gpu=False) as old:
            with pytest.raises(gdrpy.InvalidRequest, match="two of the regions have the name"):
                connected.publish_many([old, *drafts])
            assert contents(connected) == {"layer/1": b"old"}

    def test_of_a_broker_that_lost_its_state_publishes_no_other(self, broker, connected, drafts):
        broker.stop()
        broker.start()
        others = [connected.create(f"other/{number}", 3, "cpu") for number in range(5)]
        assert {draft.id for draft in drafts} < {draft.id for draft in others}
        with pytest.raises(gdrpy.Gone, match="was lost when the broker"):
            connected.publish_many(drafts)
        assert connected.list() == []
        for draft in others:
            draft.close()

    def test_of_what_is_missing_leaves_the_others_drafts(self, broker, connected, drafts):
        assert connected.publish_many(drafts, missing=True) == [1, 0, 1, 1]
        assert contents(connected)["layer/1"] == b"old"
        assert [draft.version for draft in drafts] == [1, 0, 1, 1]
        with broker.client() as client:
            draft = client.create("layer/1")["region"]
            told = client.ok("publish", region=draft, missing=True)
            assert (told["version"], told["replaced"]) == (0, None)
        assert connected.publish_many(drafts[1:2]) == [2]

    def test_tells_watchers_of_the_most_and_of_what_they_replace(self, broker, connected):
        with gdrpy.connect(broker.path) as other, other.watch(timeout=30) as watch:
            for version in (1, 2):
                drafts = [connected.create(f"{number:03}", 1, "cpu") for number in range(256)]
                assert connected.publish_many(drafts) == [version] * 256
                for draft in drafts:
                    draft.close()
                names = []
                while len(names) < 256:
                    event = next(watch)
                    assert event.kind in ("published", "freed")
                    names += [event.name] if event.kind == "published" else []
                assert names == [f"{number:03}" for number in range(256)]

    def test_of_none_and_of_the_most(self, connected):
        assert connected.publish_many([]) == []
        many = [connected.create(f"{number}", 1, "cpu") for number in range(257)]
        with pytest.raises(ValueError, match="publish_many: 257 drafts are more than 256"):
            connected.publish_many(many)
        assert connected.publish_many(many[:256]) == [1] * 256
        for draft in many:
            draft.close()

    def test_names_what_it_does_not_take(self, broker, connected, drafts):
        with pytest.raises(TypeError, match=r"publish_many: .* use publish\(\)"):
            connected.publish_many(drafts[0])
        with (
            gdrpy.connect(broker.path) as other,
            pytest.raises(ValueError, match="came from another connection: publish"),
        ):
            other.publish_many(drafts)
        drafts[3].close()
        with pytest.raises(gdrpy.Closed, match="publish_many"):
            connected.publish_many(drafts)
        assert contents(connected) == {"layer/1": b"old"}

    def test_deletes_the_files_of_every_checkpoint_that_loses_its_name(self, connected, drafts):
        about = {"format": "checkpoint", "id": "01234567"}
        for name in ("layer/2", "layer/3"):
            connected.put(name, b"[]", "cpu", metadata=about).close()
            file = {"checkpoint": name}
            connected.put(f"{name}/01234567/file", b"x", "cpu", metadata=file).close()
        assert connected.publish_many(drafts) == [1, 2, 2, 2]
        assert contents(connected) == {f"layer/{number}": b"new" for number in range(4)}

    def test_keeps_a_file_that_is_published_under_the_place_of_the_old_ones(self, connected):
        about = {"format": "checkpoint", "id": "01234567"}
        connected.put("m", b"[]", "cpu", metadata=about).close()
        file = {"checkpoint": "m"}
        for name in "f", "g":
            connected.put(f"m/01234567/{name}", b"x", "cpu", metadata=file).close()
        drafts = [
            connected.create("m", 1, "cpu"),
            connected.create("m/01234567/f", 1, "cpu", metadata=file),
        ]
        assert connected.publish_many(drafts) == [2, 2]
        assert contents(connected).keys() == {"m", "m/01234567/f"}
        for draft in drafts:
            draft.close()

    def test_by_the_asyncio_client_is_the_same(self, broker, connected):
        async def publish() -> list[int]:
            async with await aio.connect(broker.path) as client:
                drafts = [await client.create(name, 1, "cpu") for name in ("a", "b")]
                return await client.publish_many(drafts)

        assert asyncio.run(publish()) == [1, 1]
        assert contents(connected).keys() == {"a", "b"}
