"""Runs the unmodified tests of the Python SDK's source distribution: `python python_sdk.py
PORT[,PORT] REPORT`, in its directory.

The tests expect a server at localhost:8000. This script redirects connections for that address to
other ports in turn, below the SDK. So the SDK and its tests stay unmodified, and parallel runs do not
collide. It writes the results to REPORT.
"""

import asyncio
import itertools
import json
import pathlib
import sys
import unittest

EXPECTED = ("localhost", 8000)


class Result(unittest.TextTestResult):
    """Also records the names of the tests that ran."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.ran = []

    def startTest(self, test):
        super().startTest(test)
        self.ran.append(test.id())


def main(ports, report):
    connect = asyncio.BaseEventLoop.create_connection
    turns = itertools.cycle(ports)

    async def create_connection(loop, factory, host=None, to=None, **options):
        options["port"] = next(turns) if (host, options.get("port", to)) == EXPECTED else options.get("port", to)
        return await connect(loop, factory, host, **options)

    asyncio.BaseEventLoop.create_connection = create_connection
    sys.path.insert(0, "")
    # On import, the module probes this address once over plain HTTP.
    import tests.centrifugo
    tests.centrifugo.CENTRIFUGO_HTTP_URL = f"http://{EXPECTED[0]}:{ports[0]}"
    result = unittest.main(module=None, argv=["unittest", "discover", "--start-directory", "tests"], verbosity=2, exit=False,
                           testRunner=unittest.TextTestRunner(verbosity=2, resultclass=Result)).result
    pathlib.Path(report).write_text(json.dumps({
        "ran": result.ran,
        "failed": {test.id(): trace for test, trace in [*result.failures, *result.errors]},
        "skipped": {test.id(): reason for test, reason in result.skipped},
    }))


if __name__ == "__main__":
    main([int(port) for port in sys.argv[1].split(",")], sys.argv[2])
