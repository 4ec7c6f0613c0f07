from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.catalogue import DATABASE, refuses
from tests.faults.conftest import Survive
from tests.faults.deployment import Deployment

pytestmark = [pytest.mark.slow, pytest.mark.postgres, pytest.mark.redis]


@pytest.mark.parametrize("fault", DATABASE)
def test_nothing_is_lost_or_doubled_when(fault: str, deployment: Deployment, survive: Survive) -> None:
    survive(deployment, DATABASE[fault])


@contextmanager
def small_disk(d: Deployment) -> Iterator[Path]:
    """A file system of three megabytes that belongs to the server's account; skips where we may not mount one."""
    folder = Path(tempfile.mkdtemp(prefix="small-disk-"))
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    try:
        if mounted.returncode:
            pytest.skip("a file system can only be mounted by root; the trigger that raises 53100 was tried")
        account = d.postgres._account()
        if account:
            os.chown(folder, account["user"], account["group"])
        yield folder
    finally:
        if not mounted.returncode:
            subprocess.run(["umount", str(folder)], check=True)
        folder.rmdir()


def test_nothing_is_lost_or_doubled_when_a_disk_is_really_full(deployment: Deployment) -> None:
    """The bodies lie on a file system of their own, and it is full; then it has room again."""
    deployment.traffic(10)
    deployment.settle()
    with small_disk(deployment) as folder:
        with deployment.superuser() as connection:
            connection.execute(f"CREATE TABLESPACE small LOCATION '{folder}'")
            connection.execute("ALTER TABLE webhook_bodies SET TABLESPACE small")
            connection.execute("ALTER TABLE webhook_bodies ALTER body SET STORAGE EXTERNAL")
        with refuses(deployment):
            for _ in range(40):
                deployment.stripe.create("product", title="new", description="x" * 100_000)
            deployment.deliver()
        assert "could not extend file" in deployment.postgres.log
        assert "No space left on device" in deployment.postgres.log
        subprocess.run(["mount", "-o", "remount,size=64m", str(folder)], check=True)
        deployment.traffic(10)
        deployment.settle()
        deployment.assert_whole()
        with deployment.superuser() as connection:
            connection.execute("ALTER TABLE webhook_bodies SET TABLESPACE pg_default")
            connection.execute("DROP TABLESPACE small")
    deployment.assert_whole()
