"""The faults: each breaks one part of a deployment for a moment, while traffic goes on, and shows that it did."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import timedelta

import psycopg
import redis

from tests.faults.deployment import Deployment, wait_until
from tests.faults.site import STEPS
from webhooks.testing.simulator import Answer

__all__ = ["BROKER", "DATABASE", "EVERY", "KILLS", "PROVIDER", "Fault"]

Fault = Callable[[Deployment], AbstractContextManager[None]]

SHORT = 1.5
"""Seconds that a server is away."""


# -- processes


def killed_at(step: str) -> Fault:
    @contextmanager
    def fault(d: Deployment) -> Iterator[None]:
        order = d.kill_at(step)
        yield
        wait_until(lambda: not order.exists() or d.traffic(5) is not None, f"nobody ever was at {step}")

    return fault


def killed(*names: str) -> Fault:
    """SIGKILL the process and its children, start it again."""

    @contextmanager
    def fault(d: Deployment) -> Iterator[None]:
        present = [name for name in names if name in d.processes.processes]
        for name in present:
            d.processes.kill(name)
        yield
        d.start(*present)

    return fault


KILLS: dict[str, Fault] = {
    **{f"a process is killed at: {step}": killed_at(step) for step in STEPS},
    "the web server is killed": killed("web"),
    "the worker is killed with its children": killed("worker"),
    "beat is killed": killed("beat"),
    "everything is killed": killed("web", "worker", "beat"),
}


# -- the database


@contextmanager
def refuses(d: Deployment) -> Iterator[None]:
    """At least one delivery is not accepted meanwhile: the fault does reach the door."""
    before = d.stripe.counts.failed
    yield
    wait_until(lambda: d.stripe.counts.failed > before or d.traffic(2) is not None, "no delivery has noticed")


@contextmanager
def database_stopped(d: Deployment) -> Iterator[None]:
    d.postgres.stop()
    with refuses(d):
        yield
    d.postgres.start()


@contextmanager
def database_restarted(d: Deployment) -> Iterator[None]:
    d.postgres.restart()
    yield
    d.postgres.restart()


@contextmanager
def database_killed(d: Deployment) -> Iterator[None]:
    """SIGKILL of the server and all its children: it recovers from its log."""
    d.postgres.kill()
    with refuses(d):
        yield
    d.postgres.start()


def terminate(connection: psycopg.Connection[object]) -> int:
    """End every other connection, in the middle of whatever it does."""
    done = connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )
    return len(done.fetchall())


@contextmanager
def connections_terminated(d: Deployment) -> Iterator[None]:
    with d.superuser() as connection:
        ended = 0
        for _ in range(8):
            ended += terminate(connection)
            time.sleep(0.1)
        yield
        ended += terminate(connection)
        assert ended > 1


def table_locked(table: str, seconds: float = 3.0) -> Fault:
    """Somebody holds the whole table, as a careless migration does."""

    @contextmanager
    def fault(d: Deployment) -> Iterator[None]:
        holder = psycopg.connect(d.postgres.url().replace("+psycopg", ""))
        holder.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        release = threading.Timer(seconds, holder.close)  # whoever delivers meanwhile waits
        release.start()
        yield
        release.join()

    return fault


@contextmanager
def out_of_connections(d: Deployment) -> Iterator[None]:
    """`too many clients already`: everything that the server has is taken by others."""
    with ExitStack() as held:
        first = held.enter_context(d.superuser())

        def take_all() -> None:
            with suppress(psycopg.OperationalError):
                while True:
                    held.enter_context(d.superuser())

        others = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend'"
            " AND pid <> ALL(%s)"
        )
        take_all()
        before = d.stripe.counts.failed

        def is_noticed() -> bool:
            mine = [c.info.backend_pid for c in _connections(held)]
            first.execute(others, (mine,))
            take_all()
            d.traffic(2)
            return d.stripe.counts.failed > before

        wait_until(is_noticed, "no delivery has noticed")
        yield


def _connections(held: ExitStack) -> list[psycopg.Connection[object]]:
    found = [getattr(callback, "__self__", None) for _, callback in held._exit_callbacks]  # type: ignore[attr-defined]
    return [each for each in found if isinstance(each, psycopg.Connection)]


@contextmanager
def statements_time_out(d: Deployment) -> Iterator[None]:
    """`statement_timeout`, and locks that make it strike."""
    with d.superuser() as connection:
        connection.execute("ALTER ROLE postgres SET statement_timeout = '200ms'")
        terminate(connection)
        with refuses(d), table_locked("webhook_events", 1.0)(d):
            yield
        connection.execute("ALTER ROLE postgres RESET statement_timeout")
        terminate(connection)


FULL = """
CREATE OR REPLACE FUNCTION refuse_to_grow() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$
"""


def disk_full(*tables: str) -> Fault:
    """SQLSTATE 53100 on every insert, raised by a trigger: what the server says when a file cannot grow. `test_database` does it
    with a file system that is really full, where a test may mount one."""

    @contextmanager
    def fault(d: Deployment) -> Iterator[None]:
        with d.superuser() as connection:
            connection.execute(FULL)
            for table in tables:
                connection.execute(
                    f"CREATE TRIGGER full_disk BEFORE INSERT ON {table} EXECUTE FUNCTION refuse_to_grow()"
                )
            if "webhook_events" in tables:
                with refuses(d):
                    yield
            else:
                yield
            for table in tables:
                connection.execute(f"DROP TRIGGER full_disk ON {table}")

    return fault


@contextmanager
def read_only(d: Deployment) -> Iterator[None]:
    """As after a fail-over to a replica that nobody has promoted yet."""
    with d.superuser() as connection:
        connection.execute("ALTER DATABASE postgres SET default_transaction_read_only = on")
        terminate(connection)
        with refuses(d):
            yield
        connection.execute("SET default_transaction_read_only = off")
        connection.execute("ALTER DATABASE postgres RESET default_transaction_read_only")
        terminate(connection)


@contextmanager
def herd(d: Deployment) -> Iterator[None]:
    """An outage with three hundred deliveries, which then all come again at the same moment."""
    with database_stopped(d):
        for _ in range(300):
            d.change()
        d.deliver(threads=32)
        yield
    d.deliver(threads=64)


DATABASE: dict[str, Fault] = {
    "the database is stopped": database_stopped,
    "the database is restarted": database_restarted,
    "the database is killed": database_killed,
    "connections are terminated": connections_terminated,
    "the events are locked": table_locked("webhook_events"),
    "the ledger is locked": table_locked("webhook_processed_events"),
    "the objects are locked": table_locked("webhook_objects"),
    "the effects are locked": table_locked("webhook_effects"),
    "no connection is free": out_of_connections,
    "statements time out": statements_time_out,
    "the disk is full at the door": disk_full("webhook_events", "webhook_bodies"),
    "the disk is full behind it": disk_full("webhook_objects", "webhook_processed_events", "webhook_effects"),
    "the database is read-only": read_only,
    "a herd of retries after an outage": herd,
}


# -- the broker


@contextmanager
def broker_stopped(d: Deployment) -> Iterator[None]:
    d.valkey.stop()
    d.wire.drop()
    yield
    d.valkey.start()


@contextmanager
def broker_flushed(d: Deployment) -> Iterator[None]:
    with redis.Redis.from_url(d.valkey.url()) as client:
        for _ in range(10):
            client.flushall()
            time.sleep(0.05)
        yield
        client.flushall()


@contextmanager
def broker_evicts(d: Deployment) -> Iterator[None]:
    """`maxmemory` with a policy that throws keys away: ours as well."""
    with redis.Redis.from_url(d.valkey.url()) as client:
        client.config_set("maxmemory-policy", "allkeys-random")
        used = int(client.info("memory")["used_memory"])  # type: ignore[index]
        client.config_set("maxmemory", str(used + 100_000))
        before = int(client.info("stats")["evicted_keys"])  # type: ignore[index]
        ends = time.monotonic() + 1
        number = 0
        while time.monotonic() < ends:
            number += 1
            with suppress(redis.ResponseError):  # there was nothing left to throw away
                client.set(f"junk{number}", b"x" * 1000)
        yield
        assert int(client.info("stats")["evicted_keys"]) > before  # type: ignore[index]
        client.config_set("maxmemory", "0")
        client.flushall()


@contextmanager
def broker_full(d: Deployment) -> Iterator[None]:
    """`maxmemory` with `noeviction`: every write is refused."""
    with redis.Redis.from_url(d.valkey.url()) as client:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", "1")
        yield
        client.config_set("maxmemory", "0")


@contextmanager
def broker_slow(d: Deployment) -> Iterator[None]:
    d.wire.delay = 0.4
    yield
    d.wire.heal()


@contextmanager
def broker_hangs(d: Deployment) -> Iterator[None]:
    """It takes connections and never answers, for longer than its clients wait."""
    d.wire.mode = "hang"
    d.wire.drop()
    yield
    time.sleep(2)
    d.wire.heal()


BROKER: dict[str, Fault] = {
    "the broker is stopped": broker_stopped,
    "the broker is flushed": broker_flushed,
    "the broker evicts": broker_evicts,
    "the broker is full": broker_full,
    "the broker is slow": broker_slow,
    "the broker hangs": broker_hangs,
}


# -- the provider


@contextmanager
def api_is_asked(d: Deployment) -> Iterator[None]:
    """Somebody did ask meanwhile."""
    before = d.stripe.counts.api_calls
    yield
    wait_until(lambda: d.stripe.counts.api_calls > before or d.traffic(2) is not None, "nobody has asked")


@contextmanager
def api_slow(d: Deployment) -> Iterator[None]:
    """Slower than the lease of a claim."""
    d.stripe.api.latency = 2.5
    with api_is_asked(d):
        yield
    d.stripe.api.latency = 0.0


def api_says(*answers: Answer) -> Fault:
    @contextmanager
    def fault(d: Deployment) -> Iterator[None]:
        script = [answer for _ in range(15) for answer in answers]
        d.stripe.api.script.extend(script)
        yield
        wait_until(
            lambda: len(d.stripe.api.script) < len(script) or d.traffic(2) is not None, "nobody has asked"
        )
        d.stripe.api.script.clear()

    return fault


def api_cut(after: int) -> Fault:
    """Answers end after so many bytes."""

    @contextmanager
    def fault(d: Deployment) -> Iterator[None]:
        d.api.mode, d.api.cut_after = "cut", after
        d.api.drop()
        with api_is_asked(d):
            yield
        d.api.heal()

    return fault


def api_wire(body: bytes) -> Fault:
    """Something between us and the API answers in its place."""

    @contextmanager
    def fault(d: Deployment) -> Iterator[None]:
        d.api.said = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (
            len(body),
            body,
        )
        d.api.mode = "say"
        d.api.drop()
        yield
        d.api.heal()

    return fault


@contextmanager
def api_down(d: Deployment) -> Iterator[None]:
    d.api.mode = "refuse"
    d.api.drop()
    yield
    d.api.heal()


@contextmanager
def api_lags(d: Deployment) -> Iterator[None]:
    """What is asked is a replica that is a second behind: Stripe's objects have no version by which that could be seen, so
    reconcile finds it afterwards."""
    d.stripe.world.lag = timedelta(seconds=1)
    with api_is_asked(d):
        yield
    d.stripe.world.lag = timedelta(0)
    d.afterwards.append(reconcile)


def reconcile(d: Deployment) -> None:
    """What beat does every hour; the second run finds nothing, and so closes the issue of the first."""
    for _ in range(2):
        run = d.shop.state.reconciler.reconcile(d.shop.state.endpoints["stripe"])
        assert run is not None
        assert not run.error
        d.settle()


NOTHING = Answer(200, [])
PROVIDER: dict[str, Fault] = {
    "the API is slow": api_slow,
    "the API says 429": api_says(Answer(429, {"error": {"code": "rate_limit"}}, {"Retry-After": "1"})),
    "the API says 500 and 503": api_says(Answer(500, {"error": {}}), Answer(503, None)),
    "the API says something that is no object": api_says(
        NOTHING, Answer(200, "x"), Answer(200, {"object": "list"})
    ),
    "the API answers with a page of HTML": api_wire(b"<html>maintenance</html>"),
    "the API answers with half a document": api_wire(b'{"id": "cus_'),
    "the API answers with nothing": api_wire(b""),
    "the API hangs up within the head": api_cut(60),
    "the API hangs up within the body": api_cut(200),
    "the API is down": api_down,
    "the API is a replica that lags": api_lags,
}

EVERY = {**KILLS, **DATABASE, **BROKER, **PROVIDER}


def pick(chance: random.Random) -> str:
    """The name of one of all faults."""
    return chance.choice(sorted(EVERY))
