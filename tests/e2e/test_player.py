"""The example player: its page in Chromium plays a stream from an edge bucket, while viewers seek
and the server is killed."""

import collections
import contextlib
import functools
import http.server
import threading

import pytest

from harness import hls, js, wait
from harness.origin import Given, Origin
from harness.server import ROOT

PLAYER = ROOT / "examples" / "player"
SEGMENTS, SECONDS = 30, 2
# Four times what playing needs.
BYTES_S = 400e3
# In which a seek must play again, on a busy machine too.
SEEK_S = 10


@pytest.fixture
def pages():
    reason = js.chromium_missing("hls.js")
    if reason:
        pytest.skip(reason)
    with contextlib.closing(js.Pages()) as pages:
        yield pages


@pytest.fixture
def origin():
    with contextlib.closing(Origin()) as origin:
        for name, data in hls.stream(SEGMENTS, SECONDS).items():
            origin.objects[name] = Given(data, f'"{name}"')
        origin.bytes_s = BYTES_S
        yield origin


@pytest.fixture
def site(tmp_path):
    """The address of the example's page, with hls.js where its README installs it."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "index.html").symlink_to(PLAYER / "index.html")
    (folder / "node_modules").symlink_to(js.HERE / "node_modules")

    class Files(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Files, directory=folder))
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def edge(make_server, origin, site, tmp_path):
    """The server with the example's configuration."""
    text = (PLAYER / "steadfast.toml").read_text()
    for example, here in (("http://127.0.0.1:8080", site), ("http://127.0.0.1:8081", f"{origin.url}/vod")):
        assert example in text
        text = text.replace(example, here)
    config = tmp_path / "steadfast.toml"
    config.write_text(text)
    server = make_server(args=["--config", str(config)])
    server.s3_listen = server.host
    return server


# The seconds that are buffered ahead of the place where a page plays.
AHEAD = """Math.max(0, ...Array.from(video.buffered, (_, n) =>
    video.buffered.start(n) <= video.currentTime ? video.buffered.end(n) - video.currentTime : 0))"""


class Viewer:
    """A page that plays the stream. Its waits are for a state of the page."""

    def __init__(self, pages, name, site, edge):
        self.pages, self.name = pages, name
        pages.call(name, "open", url=f"{site}/?src={edge.endpoint}/films/index.m3u8")
        self.evaluate("video.play()")

    def evaluate(self, expression):
        return self.pages.call(self.name, "evaluate", expression=expression)

    def wait(self, condition):
        try:
            self.pages.call(self.name, "wait", condition=condition)
        except AssertionError as error:
            shown = self.evaluate("[document.body.innerText, video.paused, video.readyState, String(video.error?.message)]")
            raise AssertionError(f"{self.name}: {condition}: {shown} {self.pages.events}") from error

    def plays_to(self, seconds):
        self.wait(f"video.currentTime >= {seconds}")

    def seek(self, seconds):
        """Seeks; returns after how many seconds the page has played half a second there."""
        began = self.evaluate(f"(() => {{ video.currentTime = {seconds}; video.play(); return performance.now(); }})()")
        self.wait(f"!video.seeking && video.currentTime > {seconds} + 0.5")
        return (self.evaluate("performance.now()") - began) / 1000

    def play_all(self):
        """Plays the whole stream, faster than usual, and loads each segment."""
        self.evaluate("video.currentTime = 0; video.playbackRate = 8; video.play()")
        self.wait("video.ended")

    def wait_stored(self, edge):
        """Waits until the server has stored each segment that the page has loaded."""
        s3 = edge.s3()
        loaded = {one["name"] for one in self.evaluate("segments")}
        keys = lambda: {entry["Key"] for entry in s3.list_objects_v2(Bucket="films")["Contents"]}
        wait.until(lambda: loaded <= keys(), 30, "the loaded segments, stored")

    def reconnects(self, edge, seconds):
        """Starts a killed server once the page has noticed; plays to a place not yet loaded."""
        self.wait("document.querySelector('#state').textContent === 'reconnecting…'")
        edge.start()
        self.plays_to(seconds)


def asked(origin):
    """How many times each file was fetched from the origin."""
    paths = [path for method, path, _ in list(origin.requests) if method == "GET"]
    return collections.Counter(path.removeprefix("/vod/") for path in paths)


def test_a_stream_plays_through_seeks_and_crashes(pages, site, edge, origin):
    viewer = Viewer(pages, "first", site, edge)
    viewer.plays_to(3 * SECONDS + 0.5)
    end = SEGMENTS * SECONDS
    took = {place: viewer.seek(place) for place in (30, 11, 31.5, end - 3)}
    viewer.wait("video.ended")
    took[1] = viewer.seek(1)
    print("seconds until a seek has played:", took)
    assert max(took.values()) < SEEK_S, took

    # A segment is on its way from a slow origin when the server is killed. The page does not load
    # again what it has, so that must be stored.
    viewer.wait_stored(edge)
    origin.bytes_s = 50e3
    viewer.evaluate("video.currentTime = 52.1")
    wait.until(lambda: asked(origin)["026.m4s"], 30, "the request for a segment")
    sent = origin.sent
    wait.until(lambda: origin.sent > sent, 30, "a part of the segment")
    edge.kill()
    origin.bytes_s = BYTES_S
    viewer.reconnects(edge, 52.5)
    assert asked(origin)["026.m4s"] == 2

    # The page plays from its buffer when the server is killed.
    viewer.seek(20)
    viewer.wait(f"{AHEAD} > 4")
    viewer.wait_stored(edge)
    edge.kill()
    now, ahead = viewer.evaluate(f"[video.currentTime, {AHEAD}]")
    viewer.plays_to(now + 1)
    viewer.reconnects(edge, now + ahead + 1)

    origin.bytes_s = None
    viewer.play_all()
    kills, counts = 2, asked(origin)
    print("fetched again:", {name: count for name, count in counts.items() if count > 1})
    assert set(counts) == set(origin.objects)
    assert max(counts.values()) <= 1 + kills, counts
    # A kill loses only what was on its way: the wanted segment, and those of earlier seeks.
    assert counts.total() - len(counts) <= 3 * kills, counts

    s3 = edge.s3()
    wait.until(lambda: s3.list_objects_v2(Bucket="films")["KeyCount"] == len(origin.objects), 30, "all files, stored")
    second = Viewer(pages, "second", site, edge)
    second.play_all()
    loaded = second.evaluate("segments")
    assert {one["name"] for one in loaded} == set(origin.objects) - {"index.m3u8", "init.mp4"}
    assert all(one["hit"] for one in loaded), loaded
    assert asked(origin) == counts
    assert not [one for events in pages.events.values() for one in events if one["event"] == "page error"], pages.events
