"""The server API's `subscribe`, and the events that Centrifugo's Python SDK receives of it."""

import asyncio
import base64
import time
import urllib.error

import pytest

from harness.live import CONFIG, DEADLINE_S, api, live_server, token
from harness.session import connecting, next_of, plain
from test_live import both


@pytest.fixture
def live(make_server, tmp_path):
    return live_server(make_server, tmp_path, {**CONFIG, "client": {**CONFIG["client"], "channel_limit": 3}})


@pytest.fixture
def pinging(make_server, tmp_path):
    """A server that pings often, so that expired sessions end soon."""
    client = {**CONFIG["client"], "ping_interval": "4s", "pong_timeout": "3900ms", "expired_sub_close_delay": "1ms"}
    return live_server(make_server, tmp_path, {**CONFIG, "client": client})


async def connected(server, protobuf, user="ann"):
    async def get_token():
        return token(user)

    client, events = await connecting(server, protobuf, get_token=get_token)
    await client.ready()
    return client, events


@both
def test_sessions_of_a_user_are_subscribed_and_notified(live, protobuf):
    async def run():
        (first, events), (second, also) = await connected(live, protobuf), await connected(live, not protobuf)
        other, nothing = await connected(live, protobuf, "bob")
        params = {"user": "ann", "channel": "news", "data": {"hello": 1}, "info": {"role": "reader"}}
        assert api(live, "subscribe", **params) == {"result": {}}
        for each in (events, also):
            ctx = await next_of(each.subscribed)
            assert (ctx.channel, plain(ctx.data), ctx.recoverable, ctx.positioned) == ("news", {"hello": 1}, True, True)
        # A second subscribe has no effect: no second push and no second delivery.
        assert api(live, "subscribe", **params) == {"result": {}}
        for n in range(3):
            api(live, "publish", channel="news", data={"n": n})
        for each in (events, also):
            assert [await next_of(each.publications) for _ in range(3)] == [("news", n + 1, {"n": n}) for n in range(3)]
            assert each.subscribed.empty() and each.publications.empty()
        assert nothing.subscribed.empty()
        presence = api(live, "presence", channel="news")["result"]["presence"]
        assert [info["chan_info"] for info in presence.values()] == [{"role": "reader"}] * 2
        # The client cannot subscribe to it as well.
        room = first.new_subscription("news")
        await room.subscribe()
        with pytest.raises(Exception):
            await room.ready(timeout=DEADLINE_S)
        assert api(live, "unsubscribe", user="ann", channel="news") == {"result": {}}
        assert (await next_of(events.unsubscribed)).channel == "news"
        for client in (first, second, other):
            await client.disconnect()

    asyncio.run(run())


def test_one_session_gets_missed_and_new_publications(live):
    async def run():
        (first, events), (second, nothing) = await connected(live, False), await connected(live, False)
        position = api(live, "publish", channel="news", data=0)["result"]
        for n in range(1, 4):
            api(live, "publish", channel="news", data=n)
        answer = api(live, "batch", commands=[{"subscribe": {
            "user": "ann", "client": first.client_id, "channel": "news", "recover_since": position}}])
        assert answer["replies"] == [{"subscribe": {}}]
        ctx = await next_of(events.subscribed)
        assert (ctx.stream_position.offset, ctx.stream_position.epoch) == (position["offset"], position["epoch"])
        api(live, "publish", channel="news", data=4)
        assert [await next_of(events.publications) for _ in range(4)] == [("news", n + 1, n) for n in range(1, 5)]
        assert api(live, "presence_stats", channel="news")["result"]["num_clients"] == 1
        assert nothing.subscribed.empty()
        for client in (first, second):
            await client.disconnect()

    asyncio.run(run())


def test_a_subscription_ends_at_the_time_of_the_back_end(pinging):
    live = pinging

    async def run():
        client, events = await connected(live, True)
        params = {"user": "ann", "channel": "passing:news", "b64data": base64.b64encode(b"\xff\0").decode()}
        api(live, "subscribe", **params, expire_at=int(time.time()) + 5)
        ctx = await next_of(events.subscribed)
        assert (ctx.channel, ctx.data) == ("passing:news", b"\xff\0")
        assert (await next_of(events.unsubscribed)).channel == "passing:news"
        assert api(live, "channels")["result"]["channels"] == {}
        # Overridden for this one: it is in presence, although the namespace has none.
        silent = {"presence": {"value": False}}
        assert api(live, "subscribe", user="ann", channel="hidden", override=silent) == {"result": {}}
        await next_of(events.subscribed)
        assert api(live, "presence_stats", channel="hidden")["result"]["num_clients"] == 0
        assert api(live, "channels")["result"]["channels"] == {"hidden": {"num_clients": 1}}
        await client.disconnect()

    asyncio.run(run())


def test_invalid_parameters_are_refused_by_name(live):
    def refused(**params):
        error = api(live, "subscribe", **{"user": "ann", "channel": "news", **params})["error"]
        return error["code"], error["message"]

    for params, code, named in [
        ({"channel": ""}, 107, ""), ({"channel": "no:such"}, 102, ""),
        ({"expire_at": 1}, 110, ""), ({"b64data": "?"}, 107, "b64data"),
        ({"b64info": "/w=="}, 107, "b64info"),
    ]:
        found = refused(**params)
        assert found[0] == code and named in found[1], (params, found)
    with pytest.raises(urllib.error.HTTPError) as malformed:
        refused(override={"presence": 1})
    assert malformed.value.code == 400
    # No session has this client ID.
    assert api(live, "subscribe", user="ann", channel="news", client="?") == {"result": {}}
    # Centrifugo does not know it either, and ignores it.
    assert api(live, "subscribe", user="ann", channel="news", override={"history_size": {"value": 1}}) == {"result": {}}

    async def run():
        client, events = await connected(live, False)
        for n in range(3):
            assert api(live, "subscribe", user="ann", channel=f"c{n}") == {"result": {}}
            await next_of(events.subscribed)
        assert refused(channel="c3")[0] == 106
        assert set(api(live, "channels")["result"]["channels"]) == {"c0", "c1", "c2"}
        # A user without sessions: the call does nothing.
        assert api(live, "subscribe", user="unknown", channel="c3") == {"result": {}}
        await client.disconnect()

    asyncio.run(run())
