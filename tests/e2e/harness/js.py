"""JavaScript clients, unmodified, in Node or in a headless Chromium."""

import json
import os
import pathlib
import queue
import shutil
import subprocess
import threading

HERE = pathlib.Path(__file__).resolve().parents[1] / "js"
DEADLINE_S = 60


def node_missing(package="centrifuge"):
    """The reason why tests with this package cannot run in Node; `None` when they can."""
    node = shutil.which("node")
    if not node:
        return "no Node: install Node 20 or later"
    version = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=DEADLINE_S, check=True).stdout.strip()
    if int(version.lstrip("v").split(".")[0]) < 20:
        return f"Node {version} is too old: install 20 or later"
    if not (HERE / "node_modules" / package).is_dir():
        return "the packages are not installed: run `npm ci --ignore-scripts` in tests/e2e/js"
    return None


def chromium_missing(package="centrifuge"):
    """The reason why tests with this package cannot run in Chromium; `None` when they can."""
    return node_missing(package) or (None if chromium() else "no Chromium: install Debian's chromium, or name one in CHROMIUM")


def chromium():
    """The path of Chromium; `None` when it is not installed."""
    return os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


class Driver:
    """A process that holds sessions: see js/drive.mjs."""

    def __init__(self, browser_url=None):
        self._start("drive.mjs", *(["--browser", chromium(), browser_url] if browser_url else []))

    def _start(self, script, *arguments):
        self.process = subprocess.Popen(["node", str(HERE / script), *arguments], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.answers, self.events, self.errors = {}, {}, []
        self.changed = threading.Condition()
        self.ids, self.ended = iter(range(1, 1 << 30)), False
        self.threads = [threading.Thread(target=self._read, daemon=True), threading.Thread(target=self._complain, daemon=True)]
        for thread in self.threads:
            thread.start()
        self.wait_event(None, "ready")

    def _read(self):
        for line in self.process.stdout:
            message = json.loads(line)
            with self.changed:
                if "id" in message:
                    self.answers.setdefault(message["id"], queue.Queue()).put(message)
                else:
                    self.events.setdefault(message.get("session"), []).append(message)
                self.changed.notify_all()
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def _complain(self):
        self.errors.extend(self.process.stderr)

    def call(self, session, method, **params):
        """Calls a method of a session; returns its result."""
        number = next(self.ids)
        with self.changed:
            answers = self.answers.setdefault(number, queue.Queue())
        self.process.stdin.write(json.dumps({"id": number, "session": session, "method": method, **params}) + "\n")
        self.process.stdin.flush()
        try:
            answer = answers.get(timeout=DEADLINE_S)
        except queue.Empty:
            raise AssertionError(f"no answer to {method}: {self.events} {''.join(self.errors)}") from None
        assert "error" not in answer, f"{method}: {answer['error']}; {self.events.get(session)}"
        return answer["result"]

    def wait_event(self, session, event, count=1, **values):
        """Waits for `count` such events; returns all of them."""
        with self.changed:
            arrived = self.changed.wait_for(
                lambda: self.ended or len(self._matching(session, event, values)) >= count, timeout=DEADLINE_S)
            found = self._matching(session, event, values)
        assert arrived and len(found) >= count, f"{count} times {event} {values}: {self.events.get(session)} {''.join(self.errors)}"
        return found

    def _matching(self, session, event, values):
        events = self.events.get(session, [])
        return [one for one in events if one["event"] == event and all(one.get(key) == value for key, value in values.items())]

    def close(self):
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(20)


class Pages(Driver):
    """A process that holds pages, in browsers that share nothing: see js/pages.mjs."""

    def __init__(self):
        self._start("pages.mjs", chromium())
