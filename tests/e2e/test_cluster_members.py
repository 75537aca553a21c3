"""Presence, joins and leaves over several nodes, and the commands of a back end on their sessions."""

import asyncio
import shutil
import subprocess
import time

import pytest

from harness import wait
from harness.cluster import Nodes
from harness.live import api, restart, token
from harness.session import SubscriptionEvents, connecting, next_of

NODE_TTL_S = 4
# A lost link is found within 3 s.
FOUND_S = 3


@pytest.fixture
def nodes(make_server):
    """A home and two fronts."""
    return Nodes(make_server, names=["home", "one", "two"], homes=["home"])


class Events(SubscriptionEvents):
    """Also the joins and leaves."""

    def __init__(self):
        super().__init__()
        self.members = asyncio.Queue()

    async def on_join(self, ctx):
        await self.members.put(ctx.info.user)

    async def on_leave(self, ctx):
        await self.members.put("-" + ctx.info.user)


async def subscribe(server, user, channel="room"):
    client, session = await connecting(server, False, token=token(user))
    events = Events()
    subscription = client.new_subscription(channel, events=events)
    await subscription.subscribe()
    await next_of(events.subscribed)
    return client, session, subscription, events


async def members(events, count):
    return sorted([await next_of(events.members) for _ in range(count)])


def present(server, channel="room"):
    clients = api(server, "presence", channel=channel)["result"]["presence"]
    return sorted(client["user"] for client in clients.values())


def test_presence_joins_and_leaves_are_those_of_all_nodes(nodes, tmp_path):
    home, one, two = servers = nodes.make_live(tmp_path)

    async def run():
        first = await subscribe(one, "ann")
        assert await members(first[3], 1) == ["ann"]
        second = await subscribe(two, "bob")
        third = await subscribe(home, "eve")
        assert await members(first[3], 2) == ["bob", "eve"]
        assert await members(second[3], 2) == ["bob", "eve"]
        for server in servers:
            assert present(server) == ["ann", "bob", "eve"]
            stats = api(server, "presence_stats", channel="room")["result"]
            assert stats == {"num_clients": 3, "num_users": 3}
        # A client's own view, at its front.
        assert sorted(info.user for info in (await second[2].presence()).clients.values()) == ["ann", "bob", "eve"]
        assert (await first[2].presence_stats()).num_clients == 3
        await second[2].unsubscribe()
        assert await members(first[3], 1) == ["-bob"]
        await third[0].disconnect()
        assert await members(first[3], 1) == ["-eve"]
        wait.until(lambda: present(two) == ["ann"], what="the presence")
        await first[0].disconnect()
        await second[0].disconnect()

    asyncio.run(run())


@pytest.mark.timeout(120)
def test_the_clients_of_a_killed_front_leave_and_those_of_a_restarted_home_stay(nodes, tmp_path):
    home, one, two = nodes.make_live(tmp_path, node_ttl=f"{NODE_TTL_S}s")

    async def run():
        lost = await subscribe(one, "ann")
        assert await members(lost[3], 1) == ["ann"]
        left = await subscribe(two, "bob")
        assert await members(left[3], 1) == ["bob"]
        # The answer comes after the acknowledgements of the joins on the same link.
        assert present(one) == present(two) == ["ann", "bob"]
        home.kill()
        await asyncio.to_thread(restart, home)
        await asyncio.to_thread(nodes.connected)
        wait.until(lambda: present(two) == ["ann", "bob"], 1, "the presence after the restart of the home")
        assert left[3].members.empty(), "nothing is announced again"
        one.kill()
        begin = time.monotonic()
        assert await members(left[3], 1) == ["-ann"]
        assert time.monotonic() - begin < FOUND_S + NODE_TTL_S + 1
        assert present(home) == present(two) == ["bob"]
        await left[0].disconnect()
        await lost[0].disconnect()

    asyncio.run(run())


def delays_binds():
    """A wrapper that delays each `bind` of a server: its parts start far apart."""
    wrapper = ["strace", "-f", "-o", "/dev/null", "-e", "trace=bind", "-e", "inject=bind:delay_enter=700000"]
    allowed = shutil.which("strace") and subprocess.run([*wrapper, "true"], check=False, capture_output=True).returncode == 0
    return wrapper if allowed else []


def presence_after_restarts(nodes, tmp_path, rounds):
    """Restarts the home again and again while sessions at the fronts come and go. Each time the
    presence is the sessions soon after the links are up."""
    home, one, two = nodes.make_live(tmp_path, node_ttl=f"{NODE_TTL_S}s")
    home.wrapper = delays_binds()

    async def run():
        sessions = [await subscribe(server, f"user{n}") for n in range(10) for server in (one, two)]
        subscribed = {f"user{n}" for n in range(10)}
        for turn in range(rounds):
            if turn % 2 == 0:
                home.kill()
            else:
                await asyncio.to_thread(home.stop)
            starting = asyncio.ensure_future(asyncio.to_thread(restart, home))
            changing = turn
            while not starting.done() or changing < turn + 4:
                user = changing % 10
                for session in sessions[2 * user:2 * user + 2]:
                    await (session[2].unsubscribe() if f"user{user}" in subscribed else session[2].subscribe())
                subscribed ^= {f"user{user}"}
                changing += 3
                await asyncio.sleep(0.05)
            await starting
            await asyncio.to_thread(nodes.connected)
            expected = sorted(2 * sorted(subscribed))
            for server in (home, one):
                await asyncio.to_thread(wait.until, lambda: present(server) == expected, NODE_TTL_S + 1,
                                        f"the presence after {turn + 1} restarts")
        await asyncio.gather(*(session[0].disconnect() for session in sessions))

    asyncio.run(run())


@pytest.mark.timeout(120)
def test_presence_is_right_after_each_restart_of_a_home(nodes, tmp_path):
    presence_after_restarts(nodes, tmp_path, 4)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_presence_is_right_after_fifty_restarts_of_a_home(nodes, tmp_path):
    presence_after_restarts(nodes, tmp_path, 50)


def test_commands_of_a_back_end_reach_the_sessions_of_all_nodes(nodes, tmp_path):
    home, one, two = servers = nodes.make_live(tmp_path)

    async def run():
        sessions = [await subscribe(server, "ann", channel) for server, channel in zip(servers, ["room", "room", "other"])]
        info = api(one, "info")["result"]["nodes"]
        assert [(node["name"], node["num_clients"]) for node in sorted(info, key=lambda node: node["name"])] == [
            ("home", 1), ("one", 1), ("two", 1)]
        assert api(two, "channels")["result"]["channels"] == {"room": {"num_clients": 2}, "other": {"num_clients": 1}}
        await asyncio.to_thread(api, two, "subscribe", user="ann", channel="news")
        for _, session, *_ in sessions:
            assert (await next_of(session.subscribed)).channel == "news"
        await asyncio.to_thread(api, one, "publish", channel="news", data={"n": 1})
        for _, session, *_ in sessions:
            assert (await next_of(session.publications))[2] == {"n": 1}
        await asyncio.to_thread(api, home, "unsubscribe", user="ann", channel="news")
        for _, session, *_ in sessions:
            await next_of(session.unsubscribed)
        await asyncio.to_thread(api, one, "disconnect", user="ann")
        for _, session, *_ in sessions:
            assert (await next_of(session.disconnected)).code == 3503

    asyncio.run(run())


@pytest.mark.timeout(120)
def test_a_node_that_does_not_answer_is_named_until_it_counts_as_gone(nodes, tmp_path):
    _, one, two = nodes.make_live(tmp_path, node_ttl="6s")
    two.kill()
    wait.until(lambda: nodes.links("one")["two"]["state"] == "down", FOUND_S + 1, "the loss")
    begin = time.monotonic()
    error = api(one, "disconnect", user="ann")["error"]
    assert error["code"] == 100 and error["message"].endswith("no answer from the nodes: two")
    assert [node["name"] for node in api(one, "info")["result"]["nodes"]] == ["one", "home"]
    # A link may come back within a second of its loss. After that a call waits for no node that is down.
    assert time.monotonic() - begin < 2.5
    wait.until(lambda: "result" in api(one, "disconnect", user="ann"), 10, "an answer without the node")
    assert sorted(node["name"] for node in api(one, "info")["result"]["nodes"]) == ["home", "one"]
