from __future__ import annotations

import pytest

from tests.faults.catalogue import DATABASE
from tests.faults.conftest import Survive
from tests.faults.deployment import Deployment

pytestmark = [pytest.mark.slow, pytest.mark.postgres, pytest.mark.redis]


@pytest.mark.parametrize("fault", DATABASE)
def test_nothing_is_lost_or_doubled_when(fault: str, deployment: Deployment, survive: Survive) -> None:
    survive(deployment, DATABASE[fault])
