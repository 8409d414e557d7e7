"""Watching, and waiting for what a watch tells."""

import os
import select
import signal

import pytest

import gdrpy
from fake_server import grant
from gdrpy.broker.client.broker import connect
from gdrpy.broker.client.watch import Watch


def watched(peer, prefix="", session=2):
    peer.hello(session=session)
    request = peer.take("watch")
    assert request["prefix"] == prefix
    peer.reply(request)


def idle(peer):
    peer.hello()
    peer.until_closed()


#: A request without a reply.
RELEASE = b"\x82\xa2op\xa7release\xa7regions\x90"
PUBLISHED = {"event": "published", "name": "a", "region": 7, "version": 2}


class TestWatch:
    def test_yields_events_in_their_order(self, fake):
        def events(peer):
            watched(peer, prefix="a")
            peer.send(PUBLISHED)
            peer.send({"event": "freed"})
            peer.until_closed()

        with connect(fake(idle, events)) as broker, broker.watch("a") as watch:
            first, second = next(watch), next(watch)
        assert repr(first) == "Event(kind='published', name='a', region=7, version=2)"
        assert (second.kind, second.name) == ("freed", None)

    def test_can_be_polled_for(self, fake):
        def events(peer):
            watched(peer)
            peer.send(PUBLISHED)
            peer.until_closed()

        with connect(fake(idle, events)) as broker, broker.watch() as watch:
            ready, _, _ = select.select([watch], [], [], 10)
            assert ready == [watch]
            assert next(watch).kind == "published"

    def test_raises_timeout_when_nothing_happens_and_goes_on(self, fake):
        def events(peer):
            watched(peer)
            peer.take("release")
            peer.send(PUBLISHED)
            peer.until_closed()

        with connect(fake(idle, events)) as broker, broker.watch(timeout=0.01) as watch:
            with pytest.raises(gdrpy.Timeout, match=r"watch: nothing happened within 0.01 s"):
                next(watch)
            watch.timeout = 10
            watch._connection.transport.send_now(RELEASE, bool)
            assert next(watch).kind == "published"

    def test_goes_on_with_a_restarted_broker_and_says_that_events_are_lost(self, fake):
        def again(peer):
            watched(peer, session=3)
            peer.send(PUBLISHED)
            peer.until_closed()

        with connect(fake(idle, watched, again)) as broker, broker.watch() as watch:
            assert [next(watch).kind, next(watch).kind] == ["lost", "published"]

    def test_of_a_broker_that_is_gone_is_unavailable(self, fake):
        with (
            connect(fake(idle, watched), reconnect=0) as broker,
            broker.watch() as watch,
            pytest.raises(gdrpy.BrokerUnavailable, match="watch: .* did not come back"),
        ):
            next(watch)

    def test_that_is_closed_raises_closed(self, fake):
        def events(peer):
            watched(peer)
            peer.until_closed()

        with connect(fake(idle, events)) as broker:
            watch = broker.watch()
            watch.close()
            watch.close()
            with pytest.raises(gdrpy.Closed, match=r"watch: the Watch is closed: watch\(\) again"):
                next(watch)

    @pytest.mark.parametrize(
        ("message", "words"),
        [
            ({"id": 5}, "watch: .* missing required field `event`"),
            ({"error": "NotFound"}, "watch: .* missing required field `event`"),
            ({"event": 5}, r"watch: .* got `int` - at `\$.event`"),
            ({"event": "freed", "region": "a"}, r"watch: .* got `str` - at `\$.region`"),
            ({"event": "freed", "version": -1}, r"watch: .* >= 0 - at `\$.version`"),
        ],
    )
    def test_of_what_is_no_event_raises_protocol_error(self, fake, message, words):
        def nonsense(peer):
            watched(peer)
            peer.send(message)
            peer.until_closed()

        with (
            connect(fake(idle, nonsense)) as broker,
            broker.watch() as watch,
            pytest.raises(gdrpy.ProtocolError, match=words),
        ):
            next(watch)

    @pytest.mark.usefixtures("no_descriptors_leak")
    def test_that_is_refused_leaves_nothing_open(self, fake):
        def refuse(peer):
            peer.hello(session=2)
            peer.reply(peer.take("watch"), error="QuotaExceeded", message="watch: too many")
            peer.until_closed()

        with connect(fake(idle, refuse)) as broker, pytest.raises(gdrpy.QuotaExceeded):
            broker.watch()

    def test_of_no_text_raises_type_error(self, fake):
        with connect(fake(idle)) as broker, pytest.raises(TypeError, match="prefix must be a str"):
            broker.watch(7)


class TestForkedChild:
    @pytest.mark.parametrize(
        "use",
        [next, iter, lambda watch: select.select([watch], [], []), Watch.__enter__],
        ids=["next", "iter", "select", "with"],
    )
    def test_of_a_watch_is_told_that_it_is_the_parents_which_goes_on(self, fake, use):
        def events(peer):
            watched(peer)
            peer.take("release")
            peer.send(PUBLISHED)
            peer.until_closed()

        with connect(fake(idle, events)) as broker, broker.watch() as watch:
            told, tell = os.pipe()
            child = os.fork()
            if not child:
                signal.alarm(10)
                try:
                    use(watch)
                except gdrpy.Forked as error:
                    os.write(tell, str(error).encode())
                    watch.close()
                finally:
                    os._exit(0)
            os.close(tell)
            with os.fdopen(told) as said:
                assert said.read().partition(": ")[2] == (
                    "this Watch belongs to the parent process; in a forked child connect to the "
                    "broker again and watch there"
                )
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            watch._connection.transport.send_now(RELEASE, bool)
            assert next(watch).kind == "published"


def refuse(peer, op, error):
    peer.reply(peer.take(op), error=error, message=f"{op}: not yet")


class TestWaiting:
    def test_for_a_name_asks_again_at_each_event(self, fake):
        def serve(peer):
            peer.hello()
            refuse(peer, "get", "NotFound")
            refuse(peer, "get", "NotFound")
            peer.give(peer.take("get"), grant())
            peer.until_closed()

        def events(peer):
            watched(peer, prefix="a")
            peer.send(PUBLISHED)
            peer.until_closed()

        with connect(fake(serve, events)) as broker:
            assert broker.get("a", gpu=False, wait=10).id == 7

    def test_that_is_not_needed_watches_nothing(self, fake):
        def serve(peer):
            peer.hello()
            peer.give(peer.take("get"), grant())
            peer.until_closed()

        with connect(fake(serve)) as broker:
            broker.get("a", gpu=False, wait=10)

    @pytest.mark.parametrize("error", ["OutOfMemory", "QuotaExceeded"])
    @pytest.mark.parametrize("op", ["allocate", "create"])
    def test_for_memory_asks_again_at_each_event(self, fake, op, error):
        def serve(peer):
            peer.hello()
            refuse(peer, op, error)
            refuse(peer, op, error)
            peer.give(peer.take(op), grant())
            peer.until_closed()

        def events(peer):
            watched(peer, prefix="")
            peer.send({"event": "freed"})
            peer.until_closed()

        with connect(fake(serve, events)) as broker:
            assert getattr(broker, op)("a", 4096, gpu=False, wait=10).id == 7

    def test_in_vain_raises_timeout_with_the_reason(self, fake):
        def serve(peer):
            peer.hello()
            refuse(peer, "get", "NotFound")
            refuse(peer, "get", "NotFound")
            peer.until_closed()

        def events(peer):
            watched(peer, prefix="a")
            peer.until_closed()

        with connect(fake(serve, events)) as broker:
            with pytest.raises(gdrpy.Timeout, match=r"get: waited 0 s: not yet") as caught:
                broker.get("a", gpu=False, wait=0)
            assert type(caught.value.__cause__) is gdrpy.NotFound

    def test_ends_when_the_broker_is_silent(self, fake):
        def serve(peer):
            peer.hello()
            refuse(peer, "get", "NotFound")
            peer.until_closed()

        def silent(peer):
            peer.take("hello")
            peer.until_closed()

        path = fake(serve, silent)
        with (
            gdrpy.connect(path, timeout=1) as broker,
            pytest.raises(gdrpy.Timeout, match="did not answer within 1 s"),
        ):
            broker.get("a", gpu=False, wait=60)

    def test_ends_at_another_refusal(self, fake):
        def serve(peer):
            peer.hello()
            refuse(peer, "get", "NotFound")
            refuse(peer, "get", "PermissionDenied")
            peer.until_closed()

        def events(peer):
            watched(peer, prefix="a")
            peer.until_closed()

        with connect(fake(serve, events)) as broker, pytest.raises(gdrpy.PermissionDenied):
            broker.get("a", gpu=False, wait=10)
