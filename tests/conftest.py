"""What holds for all tests."""

from __future__ import annotations

import signal

from hypothesis import settings

settings.register_profile("house", deadline=None)  # machines are busy: a deadline measures them, not us
settings.load_profile("house")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what it runs in the background so, and the commands that tests interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
