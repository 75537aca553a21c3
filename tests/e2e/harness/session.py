"""Sessions of Centrifugo's Python SDK, and the events they receive."""

import asyncio
import json

from centrifuge import Client, ClientEventHandler, SubscriptionEventHandler

from .live import DEADLINE_S


def plain(data):
    """A publication's data, whichever encoding carried it."""
    return json.loads(data) if isinstance(data, bytes) else data


class SessionEvents(ClientEventHandler):
    """The events of a session: its own, and those of the subscriptions that the server made."""

    def __init__(self):
        self.connected, self.disconnected = asyncio.Queue(), asyncio.Queue()
        self.subscribed, self.unsubscribed, self.publications = asyncio.Queue(), asyncio.Queue(), asyncio.Queue()

    async def on_connected(self, ctx):
        await self.connected.put(ctx)

    async def on_disconnected(self, ctx):
        await self.disconnected.put(ctx)

    async def on_subscribed(self, ctx):
        await self.subscribed.put(ctx)

    async def on_unsubscribed(self, ctx):
        await self.unsubscribed.put(ctx)

    async def on_publication(self, ctx):
        await self.publications.put((ctx.channel, ctx.pub.offset, plain(ctx.pub.data)))


class SubscriptionEvents(SubscriptionEventHandler):
    """The events of a subscription that the client made."""

    def __init__(self):
        self.subscribed, self.unsubscribed, self.publications = asyncio.Queue(), asyncio.Queue(), asyncio.Queue()

    async def on_subscribed(self, ctx):
        await self.subscribed.put(ctx)

    async def on_unsubscribed(self, ctx):
        await self.unsubscribed.put(ctx)

    async def on_publication(self, ctx):
        await self.publications.put(plain(ctx.pub.data))


async def next_of(queue):
    """The next event of a queue."""
    return await asyncio.wait_for(queue.get(), DEADLINE_S)


def websocket(server):
    """The address that sessions connect to."""
    return f"ws://{server.address}:{server.live_port}/connection/websocket"


async def connecting(server, protobuf, **options):
    """A session that has begun to connect, and its events."""
    session_events = SessionEvents()
    client = Client(websocket(server), use_protobuf=protobuf, events=session_events, timeout=DEADLINE_S, **options)
    await client.connect()
    return client, session_events
