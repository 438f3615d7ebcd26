"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("house", deadline=None)  # machines are busy: a deadline measures them, not us
settings.load_profile("house")
