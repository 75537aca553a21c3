"""Waits for a condition with a deadline, where no event reports it."""

import time


def until(condition, deadline_s=30.0, what="the condition", every_s=0.01):
    """Calls `condition` until its result is true, and returns that; fails after `deadline_s`."""
    end = time.monotonic() + deadline_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"waited {deadline_s} s for {what}")
        time.sleep(every_s)
