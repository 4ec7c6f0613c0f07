"""The broker of files: a message is whole or not there, and nothing that lies in the folder ends a worker."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from queue import Empty

import pytest
from kombu import Connection

from webhooks.queue import QUEUE, broker_settings


@pytest.fixture
def channel(tmp_path):
    settings = broker_settings(None, tmp_path)
    with Connection(
        settings["broker_url"], transport_options=settings["broker_transport_options"]
    ) as connection:
        yield connection.default_channel


def test_a_message_has_its_name_only_when_it_is_whole(channel, tmp_path, monkeypatch):
    seen = []
    replace = Path.replace

    def look(part, target):
        seen.append((json.loads(part.read_text()), Path(target).exists(), channel._size(QUEUE)))
        return replace(part, target)

    monkeypatch.setattr(Path, "replace", look)
    channel._put(QUEUE, {"body": "ring"})

    assert seen == [({"body": "ring"}, False, 0)]
    assert [path.name.partition(".")[2] for path in (tmp_path / "broker").iterdir()] == [f"{QUEUE}.msg"]
    assert channel._get(QUEUE) == {"body": "ring"}
    with pytest.raises(Empty):
        channel._get(QUEUE)


def test_a_message_that_is_no_json_is_dropped_and_the_next_one_read(channel, tmp_path):
    (tmp_path / "broker" / f"0_torn.{QUEUE}.msg").write_bytes(b"")
    channel._put(QUEUE, {"body": "ring"})

    with pytest.raises(Empty):
        channel._get(QUEUE)
    assert channel._get(QUEUE) == {"body": "ring"}


def test_a_folder_that_was_cleared_is_made_again(channel, tmp_path):
    shutil.rmtree(tmp_path / "broker")
    with pytest.raises(Empty):
        channel._get(QUEUE)

    shutil.rmtree(tmp_path / "broker")
    channel._put(QUEUE, {"body": "ring"})
    assert channel._size(QUEUE) == 1
