"""Runs blocking calls of a simulated process: shipped code on a separate stack, so that it can be interrupted.

Invariant: exactly one thread runs at any time. The simulation resumes the thread of a call and waits until the call
is done or suspends itself, so a run depends only on its seed. If a process dies, its suspended calls end with
`ProcessKilled`. `simulated_process` starts the calls; `simulated_files` suspends them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class ProcessKilled(BaseException):
    """Raised in the code of a process that has died."""


class CallThread:
    """A thread that makes one call after another, each when it is resumed."""

    def __init__(self) -> None:
        self.call: Callable[[], Any] | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.delay_s = 0.0
        """Seconds that the suspended call waits."""
        self._is_done = True
        self._is_abandoned = False
        self._turn, self._back = threading.Lock(), threading.Lock()
        self._turn.acquire()
        self._back.acquire()
        threading.Thread(target=self._run, daemon=True).start()

    def begin(self, call: Callable[[], Any]) -> None:
        self.call, self.result, self.error = call, None, None
        self._is_done = self._is_abandoned = False

    def resume(self) -> bool:
        """Let the call continue. Return whether it is done."""
        self._turn.release()
        self._back.acquire()
        return self._is_done

    def suspend(self, delay_s: float) -> None:
        """Suspend the call, so that others run first. Called by the code of the call."""
        self.delay_s = delay_s
        self._back.release()
        self._turn.acquire()
        if self._is_abandoned:
            raise ProcessKilled

    def abandon(self) -> None:
        """End the suspended call, because its process is dead."""
        if not self._is_done:
            self._is_abandoned = True
            self.resume()

    def end(self) -> None:
        """End the thread, which has no open call."""
        self.call = None
        self.resume()

    def _run(self) -> None:
        self._turn.acquire()
        while self.call is not None:
            try:
                self.result = self.call()
            except BaseException as error:
                self.error = error
            self._is_done = True
            self._back.release()
            self._turn.acquire()
        self._back.release()


class CallThreads:
    """The threads of a run, which are reused."""

    def __init__(self) -> None:
        self._idle: list[CallThread] = []

    def take(self) -> CallThread:
        return self._idle.pop() if self._idle else CallThread()

    def give_back(self, thread: CallThread) -> None:
        self._idle.append(thread)

    def end(self) -> None:
        while self._idle:
            self._idle.pop().end()
