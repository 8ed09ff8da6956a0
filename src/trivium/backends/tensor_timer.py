"""One moment at which something has to be looked at again, to some 50 microseconds.

Event loops keep time in milliseconds: with uvloop a wait of 0.4 ms is none, with asyncio it is one of 1 ms or more, and queue delays of 100
microseconds are common. Linux' timerfd(2) wakes the loop at the right moment; elsewhere the loop's own timer has to do.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import Callable
from typing import Final, Protocol

_CLOCK_MONOTONIC: Final = 1
_TFD_TIMER_ABSTIME: Final = 1
_FLAGS: Final = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)
"""TFD_NONBLOCK and TFD_CLOEXEC have the values of the flags for files."""


class _TimeSpec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("it_interval", _TimeSpec), ("it_value", _TimeSpec))


class _Alarm(Protocol):
    """Calls back once after each `set`, at or after that moment."""

    def set(self, at_ns: int) -> None: ...

    def close(self) -> None: ...


class _FileAlarm:
    """Raises `OSError` or `AttributeError` where there is no timerfd."""

    def __init__(self, callback: Callable[[], None]) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        self._settime = library.timerfd_settime
        self._fd: int = library.timerfd_create(_CLOCK_MONOTONIC, _FLAGS)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._callback = callback
        self._spec = _TimerSpec()
        self._reference = ctypes.byref(self._spec)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._on_readable)

    def set(self, at_ns: int) -> None:
        value = self._spec.it_value
        # All zeros would disarm it.
        value.tv_sec, value.tv_nsec = divmod(max(1, at_ns), 1_000_000_000)
        self._settime(self._fd, _TFD_TIMER_ABSTIME, self._reference, None)

    def close(self) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def _on_readable(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            # It was set anew since it went off.
            return
        self._callback()


class _LoopAlarm:
    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None

    def set(self, at_ns: int) -> None:
        self.close()
        # Rounded up: a moment too early would be a turn for nothing.
        self._handle = self._loop.call_later(max(0, at_ns - time.monotonic_ns()) / 1e9 + 0.0005, self._callback)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class Timer:
    """Calls `callback` once at or after the earliest moment it was set to; then it has to be set again."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._alarm: _Alarm | None = None
        self._is_closed = False
        self._at_ns = 0
        """0: not set."""

    def set(self, at_ns: int) -> None:
        """A moment of `time.monotonic_ns`; a later one than that it is set to changes nothing."""
        if self._is_closed or (self._at_ns and self._at_ns <= at_ns):
            return
        self._at_ns = at_ns
        if self._alarm is None:
            self._alarm = _make_alarm(self._fire)
        self._alarm.set(at_ns)

    def close(self) -> None:
        """Setting it does nothing from now on."""
        self._is_closed = True
        if self._alarm is not None:
            self._alarm.close()
            self._alarm = None

    def _fire(self) -> None:
        self._at_ns = 0
        self._callback()


def _make_alarm(callback: Callable[[], None]) -> _Alarm:
    try:
        return _FileAlarm(callback)
    except (OSError, AttributeError):
        return _LoopAlarm(callback)
