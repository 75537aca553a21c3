"""The example chat: its page in two browsers, its back end, and a server that is killed meanwhile.
"""

import contextlib
import json
import os
import re
import socket
import struct
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
import zlib

import pytest

from harness import js, sign
from harness.live import restart
from harness.server import ROOT

CHAT = ROOT / "examples" / "chat"
DEADLINE_S = 60


@pytest.fixture
def chat(make_server, tmp_path):
    """The server with the example's configuration, and the example's back end; yields the page's
    address."""
    # Reserves a port on which the back end can listen later: the configuration names it beforehand.
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    port = reserved.getsockname()[1]
    config = tmp_path / "steadfast.toml"
    config.write_text((CHAT / "steadfast.toml").read_text().replace(":8080", f":{port}"))
    server = make_server(args=["--live-listen", "127.0.0.1:0", "--config", str(config)])
    back_end = subprocess.Popen(
        [sys.executable, str(CHAT / "chat.py"), "--port", str(port), "--config", str(config), "--s3", server.endpoint,
         "--live", f"ws://127.0.0.1:{server.live_port}/connection/websocket",
         "--sdk", str(js.HERE / "node_modules" / "centrifuge" / "dist" / "centrifuge.js")],
        env={**os.environ, "STEADFAST_ACCESS_KEY": sign.ACCESS, "STEADFAST_SECRET_KEY": sign.SECRET},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        server.page = re.fullmatch(r"chat: (http://\S+)\n", back_end.stdout.readline())[1]
        yield server
    finally:
        back_end.kill()
        back_end.wait(DEADLINE_S)
        back_end.stdout.close()
        reserved.close()


@pytest.fixture
def pages():
    reason = js.chromium_missing()
    if reason:
        pytest.skip(reason)
    with contextlib.closing(js.Pages()) as pages:
        yield pages


def colour(x, y, width, height):
    """A pixel of a sunset over the sea."""
    horizon, sun = height * 3 // 5, (width // 2, height * 3 // 5)
    if y < horizon and (x - sun[0]) ** 2 + (y - sun[1]) ** 2 < (height // 4) ** 2:
        return bytes((255, 230, 150))
    if y < horizon:
        part = y / horizon
        return bytes((int(70 + 180 * part), int(60 + 90 * part), int(140 - 60 * part)))
    glitter = abs(x - sun[0]) < (y - horizon) // 2 + height // 12 and y % 4 < 2
    return bytes((250, 190, 120)) if glitter else bytes((30, 50 + (y - horizon) // 3, 95))


def picture(path, width=240, height=120):
    """A PNG of a sunset."""
    def part(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + b"".join(colour(x, y, width, height) for x in range(width)) for y in range(height))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + part(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
                     + part(b"IDAT", zlib.compress(rows)) + part(b"IEND", b""))
    return path


def wait_shown(pages, name, expression, wanted):
    """Waits until an expression has this value in a page."""
    try:
        pages.call(name, "wait", condition=f"JSON.stringify({expression}) === JSON.stringify({json.dumps(wanted)})")
    except AssertionError as error:
        raise AssertionError(f"{name} sees {pages.call(name, 'evaluate', expression=expression)}, not {wanted}: "
                             f"{pages.events}") from error


def wait_state(pages, name, wanted):
    wait_shown(pages, name, "document.querySelector('#state').textContent", wanted)


def wait_people(pages, name, wanted):
    wait_shown(pages, name, "[...document.querySelectorAll('#people li')].map((one) => one.textContent)", wanted)


def wait_texts(pages, name, wanted):
    """Waits until exactly these messages are shown, in this order and as sent. Images are compared
    by name, once loaded."""
    wait_shown(pages, name, """[...document.querySelectorAll('.message')].map((one) => {
        const image = one.querySelector('img');
        const text = [...one.childNodes].filter((child) => child.nodeType === 3).map((child) => child.data).join('');
        const shown = image?.naturalWidth === 240 ? image.alt : image ? 'not loaded' : text;
        return (one.classList.contains('waiting') ? 'waiting: ' : one.querySelector('b').textContent + ': ') + shown;
    })""", wanted)


def joined(pages, chat, name):
    pages.call(name, "open", url=chat.page)
    pages.call(name, "fill", selector="#join input", text=name)
    pages.call(name, "press", selector="#join input", key="Enter")
    wait_state(pages, name, "connected")


def send(pages, name, text):
    pages.call(name, "fill", selector="#composer [name=text]", text=text)
    pages.call(name, "press", selector="#composer [name=text]", key="Enter")


def both_see(pages, texts):
    for name in ("ann", "bob"):
        wait_texts(pages, name, texts)
        wait_people(pages, name, ["ann", "bob"])


def test_two_browsers_chat_and_a_crash_loses_nothing(pages, chat, tmp_path):
    joined(pages, chat, "ann")
    send(pages, "ann", "is anyone here?")
    texts = ["ann: is anyone here?"]
    wait_texts(pages, "ann", texts)
    wait_people(pages, "ann", ["ann"])
    # A user who joins later sees it.
    joined(pages, chat, "bob")
    both_see(pages, texts)
    send(pages, "bob", "me & <b>é</b>")
    texts.append("bob: me & <b>é</b>")
    both_see(pages, texts)
    pages.call("ann", "attach", selector="#composer [type=file]", path=str(picture(tmp_path / "my cat.png")))
    texts.append("ann: my_cat.png")
    both_see(pages, texts)
    # Rooms are separate, and a new message in another room is marked.
    pages.call("ann", "fill", selector="#new input", text="garden")
    pages.call("ann", "press", selector="#new input", key="Enter")
    wait_people(pages, "ann", ["ann"])
    pages.call("ann", "evaluate", expression="location.hash = 'help'")
    wait_people(pages, "ann", ["ann", "bob"])
    send(pages, "ann", "in another room")
    wait_texts(pages, "ann", ["ann: in another room"])
    wait_shown(pages, "bob", "document.querySelector('#rooms .news')?.textContent", "# help")
    wait_texts(pages, "bob", texts)
    pages.call("ann", "evaluate", expression="location.hash = 'lobby'")
    both_see(pages, texts)

    chat.s3_listen = chat.host
    chat.kill()
    for name in ("ann", "bob"):
        wait_state(pages, name, "reconnecting…")
    send(pages, "ann", "said while it was away")
    wait_texts(pages, "ann", [*texts, "waiting: said while it was away"])
    restart(chat)
    texts.append("ann: said while it was away")
    for name in ("ann", "bob"):
        wait_state(pages, name, "connected")
    both_see(pages, texts)
    # A message sent twice, because its arrival was uncertain, is shown once.
    for _ in range(2):
        pages.call("ann", "evaluate", expression="rooms.get('lobby').sub.publish({id: '1', text: 'twice'}).then(() => 0)")
    texts.append("ann: twice")
    both_see(pages, texts)
    send(pages, "bob", "it still works")
    texts.append("bob: it still works")
    both_see(pages, texts)
    # A page that joins now shows the same, and its departure is shown.
    pages.call("bob", "reload")
    both_see(pages, texts)
    pages.call("bob", "evaluate", expression="client.disconnect()")
    wait_people(pages, "ann", ["ann"])
    assert not [one for events in pages.events.values() for one in events if one["event"] == "page error"], pages.events


def test_the_picture_of_the_readme(pages, chat, tmp_path):
    """A conversation with an attachment. `CHAT_SCREENSHOT=docs/images/chat.png` keeps the picture.
    """
    joined(pages, chat, "ann")
    joined(pages, chat, "bob")
    lines = [("ann", "The new recordings are up. Can you see them?"), ("bob", "Yes, all of them."),
             ("ann", "This one is from the harbour:")]
    for name, line in lines:
        send(pages, name, line)
        wait_shown(pages, "ann", "[...document.querySelectorAll('.message')].some("
                   f"(one) => !one.classList.contains('waiting') && one.textContent.includes({json.dumps(line)}))", True)
    pages.call("ann", "attach", selector="#composer [type=file]", path=str(picture(tmp_path / "harbour.png")))
    wait_shown(pages, "ann", "document.querySelector('.message img')?.naturalWidth", 240)
    send(pages, "bob", "Beautiful. I will use it for the title.")
    texts = [f"{name}: {line}" for name, line in lines]
    both_see(pages, [*texts, "ann: harbour.png", "bob: Beautiful. I will use it for the title."])
    path = os.environ.get("CHAT_SCREENSHOT", str(tmp_path / "chat.png"))
    pages.call("ann", "screenshot", path=str(ROOT / path))
    with open(ROOT / path, "rb") as image:
        width, height = struct.unpack(">8x8xII", image.read(24))
    assert (width, height) == (1000, 640)
    assert not [one for events in pages.events.values() for one in events if one["event"] == "page error"], pages.events


def post(url, body=b"", headers=None, method="POST"):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers or {}, method=method), timeout=DEADLINE_S) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_the_back_end_accepts_attachments_only_with_a_token(chat):
    status, body = post(chat.page + "/token", urllib.parse.urlencode({"name": " ann  b "}).encode())
    issued = json.loads(body)
    assert (status, issued["name"]) == (200, "ann b")
    assert post(chat.page + "/token", b"name=++")[0] == 400
    forged = issued["token"].rpartition(".")[0] + "."
    for token in ("", "a.b", "a.b.c", issued["token"][:-1], forged):
        assert post(chat.page + "/upload", b"x", {"Authorization": f"Bearer {token}"})[0] == 401
    bearer = {"Authorization": f"Bearer {issued['token']}"}

    def upload(name, size):
        return post(chat.page + "/upload", urllib.parse.urlencode({"name": name, "size": size}).encode(), bearer)

    status, body = upload("../../page.html", 3)
    place = json.loads(body)
    assert status == 200 and not place["file"]["image"] and ".." not in place["file"]["key"].split("/"), place
    # The signed URL accepts exactly the request it was signed for.
    kind = {"Content-Type": place["type"]}
    for body, headers in [(b"abcd", kind), (b"abc", {"Content-Type": "text/html"})]:
        assert post(place["url"], body, headers, "PUT")[0] == 403
    assert post(place["url"], b"abc", kind, "PUT")[0] == 200
    with urllib.request.urlopen(f"{chat.page}/file/{place['file']['key']}", timeout=DEADLINE_S) as answer:
        # Redirected to S3, with a type that no browser would run.
        assert answer.url.startswith(chat.endpoint) and answer.headers["Content-Type"] == "application/octet-stream"
        assert answer.read() == b"abc"
    assert upload("large", 1 << 30)[0] == 413
    assert post(chat.page + "/upload", b"", {**bearer, "Content-Length": str(1 << 30)})[0] == 413
    chat.kill()
    assert upload("late", 3)[0] == 502
