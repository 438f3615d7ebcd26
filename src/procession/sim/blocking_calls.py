"""Blocking calls of a simulated process: shipped code that runs on a stack of its own, so that it can be interrupted.

Invariant: of all threads exactly one runs at any time. The simulation hands its turn to the thread of a call and waits
until the call is done or suspends itself, so a run depends on its seed only. A call that is abandoned, because its
process died, ends with `ProcessKilled` where it was suspended. `simulated_process` starts the calls;
`simulated_files` suspends them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class ProcessKilled(BaseException):
    """Raised in the code of a process that has died."""


class CallThread:
    """A thread that makes one call after the other, each when it is resumed."""

    def __init__(self) -> None:
        self.call: Callable[[], Any] | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.delay_s = 0.0
        """How long the call that is suspended wants to wait."""
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
        """Let the call go on. Whether it is done."""
        self._turn.release()
        self._back.acquire()
        return self._is_done

    def suspend(self, delay_s: float) -> None:
        """Called by the code of the call: others go on first."""
        self.delay_s = delay_s
        self._back.release()
        self._turn.acquire()
        if self._is_abandoned:
            raise ProcessKilled

    def abandon(self) -> None:
        """The process of the call is dead: end the call where it is suspended."""
        if not self._is_done:
            self._is_abandoned = True
            self.resume()

    def end(self) -> None:
        """Ends the thread, which makes no call."""
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
    """The threads of a run, which are used again."""

    def __init__(self) -> None:
        self._idle: list[CallThread] = []

    def take(self) -> CallThread:
        return self._idle.pop() if self._idle else CallThread()

    def give_back(self, thread: CallThread) -> None:
        self._idle.append(thread)

    def end(self) -> None:
        while self._idle:
            self._idle.pop().end()
