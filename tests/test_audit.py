"""A random sample is compared, and what is said about it is what it supports."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.outage import beside
from webhooks.reconcile import statement, upper_bound


def test_299_equal_of_299_put_drift_below_one_percent() -> None:
    assert statement(299, 299, 100_000) == "299 of 299 equal: drift below 1 % with 95 % confidence"
    assert upper_bound(0, 299) < 0.01 <= upper_bound(0, 298)


def test_a_sample_of_all_is_no_sample() -> None:
    assert statement(40, 40, 40) == "40 of 40 equal, and these are all: no drift"
    assert "drift is" in statement(39, 40, 40)
    assert statement(0, 0, 7) == "nothing could be compared, so nothing can be said"


@pytest.mark.parametrize(
    ("drifted", "compared", "bound"),
    # Clopper and Pearson, one-sided, as statistical packages give it: qbeta(0.95, x + 1, n - x).
    [(0, 10, 0.2589), (1, 100, 0.0466), (3, 299, 0.0257), (5, 1000, 0.0105)],
)
def test_the_bound_is_the_exact_one(drifted: int, compared: int, bound: float) -> None:
    assert upper_bound(drifted, compared) == pytest.approx(bound, abs=0.0001)


@given(st.integers(0, 50), st.integers(1, 2000))
def test_the_bound_is_above_what_was_found_and_falls_with_the_size(drifted: int, compared: int) -> None:
    drifted = min(drifted, compared)
    bound = upper_bound(drifted, compared)
    assert drifted / compared <= bound <= 1.0
    assert upper_bound(drifted, compared * 2 + 1) <= bound


def test_an_audit_compares_mends_and_says_what_it_supports(database_url: str, tmp_path: Path) -> None:
    with beside(database_url, tmp_path, "stripe") as stripe:
        keys = [stripe.provider.create("customer", email=f"{n}@example.test") for n in range(30)]
        stripe.live()
        run = stripe.reconciler.audit(stripe.endpoint)
        assert run.report["statement"][0] == "all copies: 30 of 30 equal, and these are all: no drift"
        run = stripe.reconciler.audit(stripe.endpoint, sample=20)
        assert run.report["all"]["compared"] == 20
        assert "20 of 20 equal: drift below 14 % with 95 % confidence" in run.report["statement"][0]
        assert stripe.issues() == {}
        stripe.provider.update(keys[3], silent=True, email="other@example.test")
        run = stripe.reconciler.audit(stripe.endpoint)
        stripe.work()
        assert run.causes == {"never_delivered": 1}
        assert stripe.issues()["drift"].evidence["causes"] == {"never_delivered": 1}
        assert stripe.is_equal()
