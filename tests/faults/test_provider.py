from __future__ import annotations

import pytest

from tests.faults.catalogue import PROVIDER
from tests.faults.conftest import Survive
from tests.faults.deployment import Deployment

pytestmark = [pytest.mark.slow, pytest.mark.postgres, pytest.mark.redis]


@pytest.mark.parametrize("fault", PROVIDER)
def test_nothing_is_lost_or_doubled_when(fault: str, deployment: Deployment, survive: Survive) -> None:
    survive(deployment, PROVIDER[fault])
