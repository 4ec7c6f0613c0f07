"""The broker of files, for deployments without a server: kombu's, with messages that are whole or not there.

kombu's own writes a message under its final name, so that a worker can take it away before anything stands in it; what
it then reads is no JSON, and that ends the worker. It ends as well when somebody clears the folder under it.
"""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from queue import Empty
from typing import Any

from kombu.transport import filesystem, virtual
from kombu.utils.json import dumps

__all__ = ["Channel", "Transport"]


class Channel(filesystem.Channel):
    """A message gets its name when it is written; one that nobody can read is dropped, for the rows are the queue."""

    def _put(self, queue: str, payload: Any, **_: Any) -> None:  # type: ignore[override] # kombu names it so
        folder = Path(self.data_folder_out)
        folder.mkdir(parents=True, exist_ok=True)
        # The names that `_get` sorts by and looks for; a part ends otherwise and is not looked at.
        name = f"{round(time.monotonic() * 1000)}_{uuid.uuid4()}.{queue}.msg"
        part = folder / f"{name}.part"
        part.write_text(dumps(payload))
        part.replace(folder / name)

    def _get(self, queue: str, timeout: float | None = None) -> Any:  # noqa: ARG002 - as in kombu
        Path(self.data_folder_in).mkdir(parents=True, exist_ok=True)
        try:
            return super()._get(queue)
        except ValueError:
            raise Empty from None

    def _size(self, queue: str) -> int:
        Path(self.data_folder_in).mkdir(parents=True, exist_ok=True)
        return int(super()._size(queue))


class Transport(filesystem.Transport):
    """`webhooks-files://`; see `webhooks.queue`."""

    Channel = Channel
    global_state = virtual.BrokerState()
