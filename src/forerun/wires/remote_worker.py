"""Connects to a worker on another machine, and reconnects if the connection is lost."""

import threading
from time import monotonic
from typing import Final

from forerun.core.errors import DrafterUnreachableError
from forerun.wires.backoff import Backoff
from forerun.wires.channel import Channel
from forerun.wires.endpoint import Address, connect

CONNECT_S: Final = 5.0  # for name lookup, connection and handshake, before the next attempt


class RemoteSupply:
    """Connections to a worker at an address, made in a background thread because connecting takes time."""

    def __init__(self, address: Address, key: bytes | None) -> None:
        self._address, self._key = address, key
        self.pid, self.trouble = None, ""
        self._made: Channel | None = None
        self._attempt: threading.Thread | None = None
        self._present: Channel | None = None
        self._backoff, self._is_closed = Backoff(), False

    def take(self) -> Channel | None:
        if self._attempt is not None:
            if self._attempt.is_alive():
                return None
            self._attempt = None
            self._present, self._made = self._made, None
            return self._present
        if (self._present is None or not self._present.is_open) and self._backoff.is_over():
            self._backoff.note_failure()  # counts as a failure until the worker works
            self._attempt = threading.Thread(target=self._connect, name="forerun-connect", daemon=True)
            self._attempt.start()
        return None

    def wait(self, timeout_s: float) -> Channel | None:
        end = monotonic() + timeout_s
        while monotonic() < end and not self._is_closed:
            channel = self.take()
            if channel is not None:
                return channel
            if self._attempt is None:
                return None
            self._attempt.join(end - monotonic())
        return None

    def is_starved(self) -> bool:
        return False  # unknown for a remote process

    def replace(self) -> None:
        if self._present is not None:
            self._present.close()

    def mark_healthy(self) -> None:
        self._backoff.note_success()

    def close(self) -> None:
        self._is_closed = True
        self._backoff.give_up()
        self.replace()

    def _connect(self) -> None:
        try:
            made = Channel(connect(self._address, self._key, CONNECT_S))
        except DrafterUnreachableError as error:
            self.trouble = str(error)
            return
        if self._is_closed:
            made.close()
        else:
            self.trouble, self._made = "", made
