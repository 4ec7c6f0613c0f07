"""Deliveries as bytes on a socket, through the server of the reference deployment: what is cut, slow, huge, or two requests in one."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.apps import GITHUB, STRIPE, build, rows, signed
from tests.test_hosts import a_delivery, chunk, granian, head, talk
from webhooks import providers

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, str]]:
    folder: Path = tmp_path_factory.mktemp("served")
    url = f"sqlite:///{folder / 'inbox.sqlite'}"
    with granian(folder, url) as port:
        yield port, url


def keys(url: str) -> set[str]:
    with build(url, {"stripe": STRIPE, "github": GITHUB}) as app:
        return {row.dedup_key for row in rows(app, "events")}


def everything(port: int, *pieces: bytes, pause: float = 0.0) -> bytes:
    """All that comes back until the server hangs up, or says nothing for a second."""
    with closing(socket.create_connection(("127.0.0.1", port), timeout=10)) as connection:
        said = b""
        try:
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(pause)
            connection.settimeout(1)
            while more := connection.recv(65536):
                said += more
        except (TimeoutError, ConnectionError):
            pass
        return said


SMUGGLED = [
    ("Content-Length: {n}", "Transfer-Encoding: chunked"),
    ("Transfer-Encoding: chunked", "Content-Length: {n}"),
    ("Transfer-Encoding: chunked", "Transfer-Encoding: identity"),
    ("Transfer-Encoding: xchunked",),
    ("Transfer-Encoding : chunked",),
    ("Transfer-Encoding: chunked, identity",),
    ("Content-Length: {n}", "Content-Length: 4"),
    ("Content-Length: {n}, 4",),
    ("Content-Length: +{n}",),
    ("Content-Length: -1",),
    ("Content-Length: 0x10",),
    ("Content-Length: 99999999999999999999",),
]


@pytest.mark.parametrize("lines", SMUGGLED, ids="; ".join)
def test_of_two_requests_in_one_the_hidden_one_gets_nowhere_unless_it_is_signed(
    lines: tuple[str, ...], served: tuple[int, str]
) -> None:
    """However the server reads the pair: what reaches us is verified, so what is not signed as it stands is refused, and the
    server lives on."""
    port, url = served
    name = "".join(filter(str.isalnum, "".join(lines)))
    hidden = signed(providers.get("stripe"), "whsec_of_somebody", "customer.updated", id="evt_hidden")
    inner = head(hidden, f"Content-Length: {len(hidden.body)}") + hidden.body
    outer = a_delivery(f"evt_{name}")
    body = b"0\r\n\r\n" + inner
    said = everything(port, head(outer, *(line.format(n=len(body)) for line in lines)) + body)
    statuses = [
        int(part.split(b" ")[1])
        for part in (b"\n" + said).split(b"\nHTTP/1.1 ")[1:]
        for part in [b"HTTP/1.1 " + part]
    ]
    assert set(statuses) <= {400, 401, 411, 413, 501, 505}, said
    assert "evt_hidden" not in keys(url)
    after = a_delivery(f"evt_after_{name}")
    assert talk(port, head(after, f"Content-Length: {len(after.body)}"), after.body).startswith(
        b"HTTP/1.1 200 "
    )


def test_a_slow_sender_is_waited_for_and_holds_nobody_else(served: tuple[int, str]) -> None:
    port, url = served
    slow, quick = a_delivery("evt_slow"), a_delivery("evt_quick")
    with closing(socket.create_connection(("127.0.0.1", port), timeout=30)) as connection:
        whole = head(slow, f"Content-Length: {len(slow.body)}") + slow.body
        for start in range(0, len(whole), 100):
            connection.sendall(whole[start : start + 100])
            time.sleep(0.02)
            if start == 300:
                assert talk(port, head(quick, f"Content-Length: {len(quick.body)}"), quick.body).startswith(
                    b"HTTP/1.1 200 "
                )
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
    assert {"evt_slow", "evt_quick"} <= keys(url)


@pytest.mark.parametrize("pieces", [1, 3, 9])
def test_a_delivery_that_is_cut_anywhere_is_not_recorded(pieces: int, served: tuple[int, str]) -> None:
    port, url = served
    for ending in ("Content-Length", "chunked"):
        cut = a_delivery(f"evt_cut_{pieces}_{ending}")
        length = f"Content-Length: {len(cut.body)}"
        whole = head(cut, length if ending == "Content-Length" else "Transfer-Encoding: chunked")
        whole += cut.body if ending == "Content-Length" else chunk(cut.body)
        with closing(socket.create_connection(("127.0.0.1", port), timeout=10)) as connection:
            connection.sendall(whole[: len(whole) * pieces // 10])
    assert not {key for key in keys(url) if "cut" in key}


def test_huge_and_odd_heads_are_refused_or_ignored(served: tuple[int, str]) -> None:
    port, _ = served
    for number, line in enumerate(
        [
            "X-Big: " + "x" * 1_000_000,
            *["\r\n".join(f"X-{n}: y" for n in range(5000))],
            "X-Nul: a\0b",
            "No colon at all",
            ": no name",
        ]
    ):
        odd = a_delivery(f"evt_odd_{number}")
        said = everything(port, head(odd, f"Content-Length: {len(odd.body)}", line) + odd.body)
        assert not said or int(said.split(b" ")[1]) in {200, 400, 401, 414, 431}, (line[:20], said[:100])
    after = a_delivery("evt_after_heads")
    assert talk(port, head(after, f"Content-Length: {len(after.body)}"), after.body).startswith(
        b"HTTP/1.1 200 "
    )


def test_a_push_of_25_megabytes_is_recorded(served: tuple[int, str]) -> None:
    """GitHub's own limit is 25 MB; ours is not below it."""
    port, url = served
    commits = [{"id": f"{n:040}", "message": "x" * 1000} for n in range(23_000)]
    body = json.dumps(
        {"ref": "refs/heads/main", "repository": {"id": 1, "full_name": "a/b"}, "commits": commits}
    ).encode()
    assert 24_000_000 < len(body) < 25_000_000
    push = signed(providers.get("github"), GITHUB["secrets"][0], "push", id="big-push", body=body)
    sent = head(push, f"Content-Length: {len(body)}").replace(b"/webhooks/stripe", b"/webhooks/github")
    assert talk(port, sent, body).startswith(b"HTTP/1.1 200 ")
    assert any("big-push" in key for key in keys(url))
