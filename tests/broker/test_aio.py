"""The broker for asyncio: the same calls, without blocking the loop, and what cancelling does."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import threading

import pytest

import gdrpy
from fake_server import described, grant, memory
from gdrpy import aio

pytestmark = pytest.mark.usefixtures("no_descriptors_leak")


def idle(peer):
    peer.hello()
    peer.until_closed()


def watched(peer, prefix="", session=2):
    peer.hello(session=session)
    request = peer.take("watch")
    assert request["prefix"] == prefix
    peer.reply(request)


class TestCalls:
    def test_are_those_of_the_blocking_broker(self):
        def public(kind):
            return {name for name in dir(kind) if not name.startswith("_")}

        assert public(aio.Broker) == public(gdrpy.Broker)
        assert public(aio.BrokerRegion) == public(gdrpy.BrokerRegion)

    def test_suspend_until_the_answer_is_there(self, fake):
        ticked = threading.Event()

        def serve(peer):
            peer.hello()
            request = peer.take("get")
            assert ticked.wait(10)  # the loop runs meanwhile
            peer.give(request, grant())
            peer.reply(peer.take("seal"))
            peer.until_closed()

        async def main():
            async with await aio.connect(fake(serve)) as broker:
                asked = asyncio.create_task(broker.get("a", gpu=False))
                await asyncio.sleep(0)
                ticked.set()
                with await asked as region:
                    assert type(region) is aio.BrokerRegion
                    region.write(b"here")
                    await region.seal()
                    assert region.sealed
            assert broker.closed

        asyncio.run(main())

    def test_of_two_tasks_are_made_one_after_the_other(self, fake):
        def serve(peer):
            peer.hello()
            first = peer.take("delete")
            peer.reply(first)
            second = peer.take("delete")
            assert {first["name"], second["name"]} == {"a", "b"}
            peer.reply(second)
            peer.until_closed()

        async def main():
            async with await aio.connect(fake(serve)) as broker:
                await asyncio.gather(broker.delete("a"), broker.delete("b"))

        asyncio.run(main())

    def test_raise_what_the_broker_answers(self, fake):
        def serve(peer):
            peer.hello()
            peer.reply(peer.take("delete"), error="NotFound", message="delete: none")
            peer.until_closed()

        async def main():
            async with await aio.connect(fake(serve)) as broker:
                with pytest.raises(gdrpy.NotFound, match="delete: none"):
                    await broker.delete("a")

        asyncio.run(main())

    def test_get_many_collects_all_packets(self, fake):
        def serve(peer):
            peer.hello()
            request = peer.take("get_many")
            for number, more in ((1, True), (2, False)):
                part = {"id": request["id"], "fds": 1, "more": more, "grants": [grant(number)]}
                peer.send(part, [memory()])
            peer.until_closed()

        async def main():
            async with await aio.connect(fake(serve)) as broker:
                regions = await broker.get_many(["a", "b"], gpu=False)
                assert [region.id for region in regions] == [1, 2]
                for region in regions:
                    region.close()

        asyncio.run(main())

    def test_stale_is_awaited(self, fake):
        def serve(peer):
            peer.hello()
            peer.give(peer.take("get"), grant())
            peer.reply(peer.take("stat"), **described(linked=False))
            peer.until_closed()

        async def main():
            async with await aio.connect(fake(serve)) as broker:
                with await broker.get("a", gpu=False) as region:
                    assert await region.stale is True

        asyncio.run(main())


class TestSilence:
    def test_raises_timeout_and_the_next_call_connects_again(self, fake):
        def silent(peer):
            peer.hello()
            peer.take("delete")
            peer.until_closed()

        def prompt(peer):
            peer.hello(session=2)
            peer.reply(peer.take("delete"))
            peer.until_closed()

        async def main():
            async with await aio.connect(fake(silent, prompt), timeout=1) as broker:
                with pytest.raises(gdrpy.Timeout, match="delete: .* did not answer within 1 s"):
                    await broker.delete("a")
                await broker.delete("a")

        asyncio.run(main())


class TestCancelling:
    def test_in_the_middle_drops_the_connection(self, fake):
        asked = threading.Event()

        def first(peer):
            peer.hello()
            peer.take("get")
            asked.set()
            peer.until_closed()

        def second(peer):
            peer.greet_again()
            peer.give(peer.take("get"), grant())
            peer.until_closed()

        async def main():
            async with await aio.connect(fake(first, second)) as broker:
                task = asyncio.create_task(broker.get("a", gpu=False))
                await asyncio.to_thread(asked.wait, 10)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                (await broker.get("a", gpu=False)).close()

        asyncio.run(main())

    def test_with_the_answer_already_there_loses_no_descriptor(self, fake):
        answered = threading.Event()

        def first(peer):
            peer.hello()
            peer.give(peer.take("get"), grant())
            answered.set()
            peer.until_closed()

        async def main():
            async with await aio.connect(fake(first)) as broker:
                task = asyncio.create_task(broker.get("a", gpu=False))
                await asyncio.sleep(0)  # it has asked
                assert answered.wait(10)  # and the loop has not looked since
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task

        asyncio.run(main())

    def test_who_waits_for_a_turn_harms_nobody(self, fake):
        asked, cancelled = threading.Event(), threading.Event()

        def serve(peer):
            peer.hello()
            request = peer.take("delete")
            asked.set()
            assert cancelled.wait(10)
            peer.reply(request)
            peer.until_closed()

        async def main():
            async with await aio.connect(fake(serve)) as broker:
                first = asyncio.create_task(broker.delete("a"))
                await asyncio.to_thread(asked.wait, 10)
                second = asyncio.create_task(broker.delete("b"))
                await asyncio.sleep(0)
                second.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await second
                cancelled.set()
                await first

        asyncio.run(main())


class TestClosing:
    def test_ends_a_call_that_waits(self, fake):
        asked = threading.Event()

        def serve(peer):
            peer.hello()
            peer.take("delete")
            asked.set()
            peer.until_closed()

        async def main():
            broker = await aio.connect(fake(serve))
            task = asyncio.create_task(broker.delete("a"))
            await asyncio.to_thread(asked.wait, 10)
            broker.close()
            with pytest.raises(gdrpy.Closed):
                await task

        asyncio.run(main())

    def test_a_region_gives_it_back_at_once(self, fake):
        told = threading.Event()

        def serve(peer):
            peer.hello()
            peer.give(peer.take("get"), grant())
            assert peer.take("release")["regions"] == [7]
            told.set()
            peer.until_closed()

        async def main():
            async with await aio.connect(fake(serve)) as broker:
                (await broker.get("a", gpu=False)).close()
                assert await asyncio.to_thread(told.wait, 10)

        asyncio.run(main())

    def test_a_region_in_another_thread_gives_it_back_at_once(self, fake):
        told = threading.Event()

        def serve(peer):
            peer.hello()
            peer.give(peer.take("get"), grant())
            assert peer.take("release")["regions"] == [7]
            told.set()
            peer.until_closed()

        async def main():
            async with await aio.connect(fake(serve)) as broker:
                region = await broker.get("a", gpu=False)
                await asyncio.to_thread(region.close)
                assert await asyncio.to_thread(told.wait, 10)

        asyncio.run(main())

    def test_a_region_in_another_thread_after_the_loop_has_ended_raises_nothing(self, fake):
        async def main():
            broker = await aio.connect(fake(serve))
            return broker, await broker.get("a", gpu=False)

        def serve(peer):
            peer.hello()
            peer.give(peer.take("get"), grant())
            peer.until_closed()

        broker, region = asyncio.run(main())
        thread = threading.Thread(target=region.close)
        thread.start()
        thread.join()
        assert region.closed
        broker._connection.close()

    def test_a_region_while_others_are_given_back_keeps_the_connection(self, fake, monkeypatch):
        """As the garbage collector does, anywhere."""

        def serve(peer):
            peer.hello()
            peer.give(peer.take("get"), grant())
            peer.give(peer.take("get"), grant(8))
            assert peer.take("release")["regions"] == [7]
            assert peer.take("release")["regions"] == [8]
            peer.reply(peer.take("delete"))
            peer.until_closed()

        async def main():
            async with await aio.connect(fake(serve)) as broker:
                first, second = [await broker.get("a", gpu=False) for _ in range(2)]
                transport = type(broker._connection.transport)
                send_now = transport.send_now

                def send(self, *args):
                    second.close()
                    return send_now(self, *args)

                monkeypatch.setattr(transport, "send_now", send)
                first.close()
                await broker.delete("a")

        asyncio.run(main())

        asyncio.run(main())

    def test_many_regions_while_the_broker_is_busy_needs_no_other_call(self, broker, client):
        async def main():
            async with await aio.connect(broker.path) as busy:
                regions = [await busy.allocate(None, 4096, "cpu", gpu=False) for _ in range(800)]
                os.kill(broker.pid, signal.SIGSTOP)
                for region in regions:
                    region.close()
                assert busy._connection.returned
                os.kill(broker.pid, signal.SIGCONT)
                while client.ok("status")["leases"]:
                    await asyncio.sleep(0)

        asyncio.run(main())


class TestWatch:
    def test_yields_events(self, fake):
        def events(peer):
            watched(peer, prefix="a")
            peer.send({"event": "published", "name": "a", "region": 7, "version": 2})
            peer.send({"event": "freed"})
            peer.until_closed()

        async def main():
            found = []
            async with (
                await aio.connect(fake(idle, events)) as broker,
                broker.watch("a") as watch,
            ):
                async for event in watch:
                    found.append(event.kind)
                    if event.kind == "freed":
                        break
            assert found == ["published", "freed"]

        asyncio.run(main())

    def test_that_is_cancelled_loses_no_event(self, fake):
        quiet = threading.Event()

        def events(peer):
            watched(peer)
            assert quiet.wait(10)
            peer.send({"event": "freed"})
            peer.until_closed()

        async def main():
            async with await aio.connect(fake(idle, events)) as broker, broker.watch() as watch:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(watch), 0.01)
                quiet.set()
                assert (await anext(watch)).kind == "freed"

        asyncio.run(main())

    def test_goes_on_with_a_restarted_broker(self, fake):
        def again(peer):
            watched(peer, session=3)
            peer.until_closed()

        async def main():
            async with (
                await aio.connect(fake(idle, watched, again)) as broker,
                broker.watch() as watch,
            ):
                assert (await anext(watch)).kind == "lost"

        asyncio.run(main())

    def test_raises_timeout_when_nothing_happens(self, fake):
        def events(peer):
            watched(peer)
            peer.until_closed()

        async def main():
            async with (
                await aio.connect(fake(idle, events)) as broker,
                broker.watch(timeout=0.01) as watch,
            ):
                with pytest.raises(gdrpy.Timeout, match="nothing happened within 0.01 s"):
                    await anext(watch)

        asyncio.run(main())


class TestWaiting:
    def test_for_a_name_asks_again_at_each_event(self, fake):
        def serve(peer):
            peer.hello()
            for _ in range(2):
                peer.reply(peer.take("get"), error="NotFound", message="get: not yet")
            peer.give(peer.take("get"), grant())
            peer.until_closed()

        def events(peer):
            watched(peer, prefix="a")
            peer.send({"event": "published", "name": "a", "region": 7, "version": 1})
            peer.until_closed()

        async def main():
            async with await aio.connect(fake(serve, events)) as broker:
                (await broker.get("a", gpu=False, wait=10)).close()

        asyncio.run(main())


class TestPickledRegion:
    def test_arrives_as_a_blocking_one(self, fake):
        def serve(peer):
            peer.hello()
            peer.give(peer.take("get"), grant())
            peer.until_closed()

        def serve_attached(peer):
            peer.hello(session=2)
            peer.give(peer.take("get"), grant())
            peer.until_closed()

        async def main():
            async with await aio.connect(fake(serve, serve_attached)) as broker:
                with await broker.get("a", gpu=False) as region:
                    return pickle.dumps(region)

        with pickle.loads(asyncio.run(main())) as copy:
            assert type(copy) is gdrpy.BrokerRegion
        copy._broker.close()
