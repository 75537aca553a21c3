"""Sessions that remember what arrived, and publishers that remember what was acknowledged."""

import asyncio
import http.client
import itertools
import json
import threading
import time

from centrifuge import Client, ClientEventHandler, SubscriptionEventHandler

from . import wait
from .live import API_KEY, api, token
from .session import plain, websocket

INSUFFICIENT = 2500


class Received(SubscriptionEventHandler):
    """What a subscription received."""

    def __init__(self):
        self.publications, self.times = [], []
        self.subscribed, self.resubscribed = [], 0
        self.joins, self.leaves = [], []

    async def on_subscribing(self, ctx):
        self.resubscribed += ctx.code >= INSUFFICIENT

    async def on_subscribed(self, ctx):
        self.subscribed.append(ctx)

    async def on_publication(self, ctx):
        self.publications.append((ctx.pub.offset, plain(ctx.pub.data)["n"]))
        self.times.append(time.monotonic())

    async def on_join(self, ctx):
        self.joins.append(ctx.info.client)

    async def on_leave(self, ctx):
        self.leaves.append((time.monotonic(), ctx.info.client))


class Session(ClientEventHandler):
    """A session of Centrifugo's SDK with a subscription to each of its channels."""

    def __init__(self, server, channels):
        self.server, self.client = server, None
        self.received = {channel: Received() for channel in channels}
        # The ids of its connections, when they ended, and why.
        self.ids, self.ended, self.reasons = [], {}, []

    async def on_connected(self, ctx):
        self.ids.append(ctx.client)

    async def on_connecting(self, ctx):
        if self.ids:
            self.reasons.append((ctx.code, ctx.reason))
            self.ended.setdefault(self.ids[-1], time.monotonic())

    async def on_disconnected(self, ctx):
        self.ended.setdefault(self.ids[-1], time.monotonic())

    async def open(self):
        self.client = Client(websocket(self.server), events=self, token=token(), timeout=20, max_reconnect_delay=0.5)
        for channel, received in self.received.items():
            await self.client.new_subscription(channel, events=received, max_resubscribe_delay=1.0).subscribe()
        await self.client.connect()

    def move(self, server):
        """From its next connection on, the session is at `server`, as behind a load balancer."""
        self.server = server
        self.client._address = websocket(server)

    async def wait_longer(self):
        """Keeps the connection while its server is silent: without timeouts of the SDK and of its WebSocket library."""
        self.client._max_server_ping_delay = 600
        self.client._restart_ping_wait()
        self.client._conn.ping_timeout = None

    def is_ready(self, connections=1):
        """Whether that many connections were made, the last one with all subscriptions."""
        return len(self.ids) >= connections and all(len(one.subscribed) >= connections for one in self.received.values())

    @property
    def resubscribed(self):
        return sum(received.resubscribed for received in self.received.values())


class Sessions:
    """A session at each of the servers, each with the same channels; in a thread of their own."""

    def __init__(self, servers, channels):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.all = [Session(server, channels) for server in servers]

    def run(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def __enter__(self):
        self.thread.start()
        try:
            for session in self.all:
                self.run(session.open())
            wait.until(lambda: all(session.is_ready() for session in self.all), what="the subscriptions")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        try:
            self.run(self.close())
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join()
            self.loop.close()

    async def close(self):
        await asyncio.gather(*(session.client.disconnect() for session in self.all if session.client))
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            await asyncio.wait(left, timeout=5)


class Publishers:
    """Publish different values into channels in turn, each publisher through one of the servers."""

    def __init__(self, servers, channels, pause_s=0.005):
        self.channels, self.pause_s = channels, pause_s
        self.acknowledged = {channel: {} for channel in channels}
        self.values = itertools.count()
        # Answers other than an acknowledgement, by code; 0 for none.
        self.refused, self.twice = {}, []
        self.counts = {server.data.name: 0 for server in servers}
        self.stopping = threading.Event()
        self.threads = [threading.Thread(target=self.publish, args=(server,)) for server in servers]

    @property
    def count(self):
        return sum(self.counts.values())

    def publish(self, server):
        connection = None
        for channel in itertools.cycle(self.channels):
            if self.stopping.wait(self.pause_s):
                return
            value = next(self.values)
            body = json.dumps({"channel": channel, "data": {"n": value}})
            connection = connection or http.client.HTTPConnection(server.address, server.live_port, timeout=20)
            try:
                connection.request("POST", "/api/publish", body, {"X-API-Key": API_KEY})
                answer = json.loads(connection.getresponse().read())
            except (OSError, http.client.HTTPException):
                connection.close()
                connection, answer = None, {"error": {"code": 0}}
            if "error" in answer:
                code = answer["error"]["code"]
                self.refused[code] = self.refused.get(code, 0) + 1
                continue
            known = self.acknowledged[channel]
            offset = answer["result"]["offset"]
            if known.setdefault(offset, value) != value:
                self.twice.append((channel, offset, known[offset], value))
            self.counts[server.data.name] += 1

    def more(self, count, deadline_s=60, through=None):
        """Waits for further acknowledged publications, in all or through one server."""
        counted = lambda: self.counts[through.data.name] if through else self.count
        enough = counted() + count
        wait.until(lambda: counted() >= enough, deadline_s, "acknowledged publications")

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join()


def check(sessions, acknowledged, deadline_s=30):
    """Every session received every acknowledged publication once, in the order of offsets from 1."""
    for channel, values in acknowledged.items():
        values = dict(values)
        last = max(values, default=0)
        for session in sessions:
            got = session.received[channel].publications
            wait.until(lambda got=got: last == 0 or (got and got[-1][0] >= last), deadline_s, f"publication {last} of {channel}")
            got = list(got)
            offsets = [offset for offset, _ in got]
            wrong = [(place, offset) for place, offset in enumerate(offsets, 1) if place != offset][:5]
            assert not wrong, f"{channel} at {session.server.data.name}: not each offset once and in order: {wrong} of {len(got)}"
            other = [(offset, value, got[offset - 1][1]) for offset, value in values.items() if got[offset - 1][1] != value][:5]
            assert not other, f"{channel} at {session.server.data.name}: not what was acknowledged: {other}"


def check_all(server, sessions, publishers, deadline_s=30):
    """As `check`, once the publishers are stopped: also that all sessions have all of the history, and no value twice."""
    publishers.stop()
    assert not publishers.twice, f"an offset was acknowledged twice: {publishers.twice[:5]}"
    for channel, values in publishers.acknowledged.items():
        last = api(server, "history", channel=channel, limit=0)["result"]["offset"]
        for session in sessions:
            got = session.received[channel].publications
            wait.until(lambda got=got, last=last: len(got) >= last, deadline_s, f"all {last} publications of {channel}")
            assert len(got) == last and got == sessions[0].received[channel].publications
            assert len({value for _, value in got}) == last, f"{channel}: a value was published twice"
    check(sessions, publishers.acknowledged)
    recovered = [one.recovered for session in sessions for received in session.received.values()
                 for one in received.subscribed if one.was_recovering]
    assert all(recovered), f"{recovered.count(False)} of {len(recovered)} subscriptions did not recover"


def check_kept(sessions):
    """Every session has its first connection."""
    dropped = [(session.server.data.name, session.reasons) for session in sessions if len(session.ids) > 1]
    assert not dropped, f"sessions were dropped: {dropped}"


def summary(sessions, publishers):
    """The figures of a test."""
    return (f"{publishers.count} acknowledged publications, refused {publishers.refused}, {len(sessions)} sessions, "
            f"{sum(len(session.ids) - 1 for session in sessions)} reconnects, "
            f"{sum(session.resubscribed for session in sessions)} subscriptions made again after {INSUFFICIENT}")
