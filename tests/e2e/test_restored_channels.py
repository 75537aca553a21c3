"""The channels of a pool that was put back to an earlier state: clients are told of the gap."""

import asyncio
import os
import shutil
import signal

import pytest
from centrifuge import Client

from harness.live import DEADLINE_S, api, live_server, restart, token
from harness.session import SubscriptionEvents, next_of, websocket

# The first is published before the snapshot, the second only after it.
CHANNELS = ("known", "unknown")


def publish(server, channel, value):
    """Publishes, and returns the position."""
    answer = api(server, "publish", channel=channel, data=value)["result"]
    return answer["epoch"], answer["offset"]


@pytest.mark.parametrize("disks", [1, 2])
def test_no_epoch_and_offset_is_shown_twice(make_server, tmp_path, disks):
    paths = [tmp_path / f"d{n}" for n in range(disks)]
    settings = {"data.disks": [str(path) for path in paths]} if disks > 1 else {"data.pool": paths[0]}
    server = live_server(make_server, tmp_path, settings=settings, pool_size="100 MiB", extent_size="4 MiB")

    async def in_thread(call, *args):
        return await asyncio.get_running_loop().run_in_executor(None, call, *args)

    async def get_token():
        return token()

    async def run():
        client = Client(websocket(server), get_token=get_token, min_reconnect_delay=0.05, max_reconnect_delay=0.2)
        await client.connect()
        events = {}
        for channel in CHANNELS:
            events[channel] = SubscriptionEvents()
            await client.new_subscription(channel, events=events[channel]).subscribe()
            await next_of(events[channel].subscribed)
        shown = {("known", *publish(server, "known", "first")): "first"}
        os.kill(server.pid, signal.SIGSTOP)
        for path in paths:
            shutil.copyfile(path, tmp_path / f"{path.name}.snapshot")
        os.kill(server.pid, signal.SIGCONT)
        for channel in CHANNELS:
            shown[channel, *publish(server, channel, "lost")] = "lost"
        assert [await next_of(events["known"].publications) for _ in range(2)] == ["first", "lost"]
        assert await next_of(events["unknown"].publications) == "lost"
        await in_thread(server.kill)
        for path in paths:
            (tmp_path / f"{path.name}.snapshot").replace(path)
        server.args.append("--restored")
        await in_thread(restart, server)
        for channel in CHANNELS:
            back = await asyncio.wait_for(events[channel].subscribed.get(), DEADLINE_S)
            assert back.was_recovering and not back.recovered, channel
            position = publish(server, channel, "new")
            assert position == (back.stream_position.epoch, 2 if channel == "known" else 1)
            assert shown.setdefault((channel, *position), "new") == "new", "shown with other content before"
        found = api(server, "history", channel="known", limit=10)["result"]["publications"]
        assert [publication["data"] for publication in found] == ["first", "new"]
        for channel, expected in [("known", ["new"]), ("unknown", ["new"])]:
            assert [await next_of(events[channel].publications) for _ in expected] == expected
        await client.disconnect()

    asyncio.run(run())
