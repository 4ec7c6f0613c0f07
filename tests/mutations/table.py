"""What is broken, and the tests that must fail because of it.

The texts are short pieces of our own files, found exactly once; whoever changes such a line changes it here as well.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MUTATIONS", "Mutation"]


@dataclass(frozen=True)
class Mutation:
    """One fault."""

    what: str
    file: str
    old: str
    new: str
    noticed_by: tuple[str, ...]
    """pytest's names of tests, of which one must fail."""
    on: str = "sqlite"
    """The database on which it is noticed."""


DOOR, HOSTS, RACES, FLOWS, EFFECTS = (
    f"tests/test_{name}.py" for name in ("door", "hosts", "races", "flows", "effects")
)
SPINE = "tests/test_cases_spine.py"

MUTATIONS = (
    # -- who is let in
    Mutation(
        "nothing is verified",
        "webhooks/receiving.py",
        "signed_by = provider.signature.verify(delivery, endpoint.secrets, datetime.now(UTC))",
        "signed_by = endpoint.secrets[0]",
        (f"{DOOR}::test_no_refusal_says_why",),
    ),
    Mutation(
        "signatures are compared as text",
        "webhooks/signatures.py",
        "_hmac.compare_digest(candidate, expected)",
        "_hmac.compare_digest(candidate.decode('latin-1'), expected.decode('latin-1'))",
        (f"{DOOR}::test_whatever_a_signature_header_holds_is_a_plain_refusal",),
    ),
    Mutation(
        "signatures are compared until the first difference",
        "webhooks/signatures.py",
        "_hmac.compare_digest(candidate, expected)",
        "candidate == expected",
        ("tests/test_signatures.py",),
    ),
    Mutation(
        "an empty secret can sign",
        "webhooks/signatures.py",
        "good = [secret for secret in secrets if secret and not secret.isspace()]",
        "good = list(secrets)",
        (f"{DOOR}::test_nothing_that_is_signed_with_an_empty_secret_gets_in",),
    ),
    Mutation(
        "the age of a signature is not checked",
        "webhooks/signatures.py",
        "if tolerance is not None and abs(unix(now) - seconds) > tolerance.total_seconds():",
        "if False:",
        (f"{DOOR}::test_a_time_outside_the_window_is_refused_on_either_side",),
    ),
    Mutation(
        "a time that is to come is never refused",
        "webhooks/signatures.py",
        "abs(unix(now) - seconds) > tolerance.total_seconds()",
        "unix(now) - seconds > tolerance.total_seconds()",
        (f"{DOOR}::test_a_time_outside_the_window_is_refused_on_either_side",),
    ),
    Mutation(
        "a token is good for any number of bodies",
        "webhooks/inbox/__init__.py",
        "            self.use_nonce(held.endpoint, nonce.value, nonce.dedup_key, nonce.digest, within)\n",
        "            True or self.use_nonce(held.endpoint, nonce.value, nonce.dedup_key, nonce.digest, within)\n",
        ("tests/test_nonces.py",),
    ),
    Mutation(
        "a body of any size is read",
        "webhooks/receiving.py",
        "if len(delivery.body) > endpoint.max_body:",
        "if False:",
        (f"{HOSTS}::test_a_chunked_body_over_the_limit_is_cut_off",),
    ),
    Mutation(
        "a compressed body is taken",
        "webhooks/receiving.py",
        'if delivery.headers.get("Content-Encoding", "identity").strip().lower() not in {"", "identity"}:',
        "if False:",
        (f"{DOOR}::test_a_compressed_body_is_refused_unopened",),
    ),
    Mutation(
        "an id out of a payload may be any path",
        "webhooks/provider.py",
        'return quote(value, safe="")',
        "return value",
        ("tests/test_api.py::test_an_id_is_one_segment_of_the_path_whatever_it_is",),
    ),
    Mutation(
        "a document may be nested as deep as it likes",
        "webhooks/jsontext.py",
        "MAX_DEPTH = 200",
        "MAX_DEPTH = 10**9",
        ("tests/test_jsontext.py::test_the_depth_is_limited_at_one_place_for_both_readers",),
    ),
    Mutation(
        "errors repeat what foreign code says",
        "webhooks/apply/failures.py",
        'return f"{type(original).__module__}.{type(original).__qualname__} at {_place(error)}"[:1000]',
        'return f"{error!r} at {_place(error)}"[:1000]',
        (f"{DOOR}::test_nothing_secret_is_logged_stored_or_said",),
    ),
    # -- recorded before it is answered, once
    Mutation(
        "200 although nothing was recorded",
        "webhooks/receiving.py",
        '503, "try again later\\n", headers={"Retry-After": str(int(RETRY_AFTER.total_seconds()))}',
        "200",
        (f"{DOOR}::test_while_the_inbox_cannot_be_written_the_provider_is_told_to_come_again",),
    ),
    Mutation(
        "a refusal for what is only trouble of ours",
        "webhooks/receiving.py",
        '503, "try again later\\n"',
        '400, "try again later\\n"',
        (f"{DOOR}::test_while_the_inbox_cannot_be_written_the_provider_is_told_to_come_again",),
    ),
    Mutation(
        "the bell is rung before the commit",
        "webhooks/receiving.py",
        "            recorded = self._inbox.record(held.arrivals, within)\n",
        "            self._bell.ring()\n            recorded = self._inbox.record(held.arrivals, within)\n",
        (f"{DOOR}::test_the_bell_is_rung_after_the_commit_and_not_at_all_without_one",),
    ),
    Mutation(
        "the bell is not rung",
        "webhooks/receiving.py",
        "        if new:\n            self._bell.ring()",
        "        if False:\n            self._bell.ring()",
        (f"{DOOR}::test_the_bell_is_rung_after_the_commit_and_not_at_all_without_one",),
    ),
    Mutation(
        "a second delivery is an error instead of a copy",
        "webhooks/inbox/sql.py",
        "ON CONFLICT (endpoint, dedup_key) DO NOTHING RETURNING id",
        "RETURNING id",
        (f"{RACES}::test_of_fifty_identical_deliveries_at_once_one_is_new_and_all_are_answered_200",),
    ),
    Mutation(
        "a second delivery counts as new",
        "webhooks/inbox/sql.py",
        "(xmax = 0) AS new",
        "true AS new",
        (f"{DOOR}::test_a_captured_request_is_recorded_once_however_often_it_is_replayed",),
        on="postgres",
    ),
    # -- what is written is the current object
    Mutation(
        "an older fetch may overwrite a newer one",
        "webhooks/apply/statements.py",
        " WHERE o.claim_no <= excluded.claim_no",
        "",
        (f"{RACES}::test_the_real_statements_do_what_the_model_says_in_every_schedule_of_two_changes",),
    ),
    Mutation(
        "an older copy replaces a newer one where a plain object is written at once",
        "webhooks/apply/statements.py",
        "WHERE o.{guard} <= excluded.{guard} RETURNING claim_no)",
        "RETURNING claim_no)",
        ("tests/test_plain_objects.py::test_an_older_copy_is_stale_and_its_handlers_do_not_run",),
        on="postgres",
    ),
    Mutation(
        "a plain object is written although its claim was lost",
        "webhooks/apply/writing.py",
        "if done.closed != len(events):",
        "if False:",
        ("tests/test_plain_objects.py::test_a_worker_that_slept_past_its_lease_leaves_nothing_behind",),
        on="postgres",
    ),
    Mutation(
        "a plain object is written without its ledger rows",
        "webhooks/apply/statements.py",
        " SELECT e.id, h.entry, :now FROM fresh, webhook_events e,",
        " SELECT e.id, h.entry, :now FROM (SELECT FROM fresh WHERE false) f, webhook_events e,",
        (
            "tests/test_plain_objects.py::test_all_events_of_a_claim_get_their_outcome_and_every_handler_its_ledger_rows",
        ),
        on="postgres",
    ),
    Mutation(
        "many objects at once are written without the guard",
        "webhooks/apply/mirroring.py",
        " WHERE o.{{guard}} <= excluded.{{guard}}",
        "",
        ("tests/test_older_states.py",),
    ),
    Mutation(
        "an equal time counts as older",
        "webhooks/apply/writing.py",
        "else as_of < _aware(stored.as_of)",
        "else as_of <= _aware(stored.as_of)",
        (
            "tests/test_older_states.py::test_where_nothing_is_fetched_the_later_of_two_events_of_one_second_stays",
        ),
    ),
    Mutation(
        "a replica that lags is believed",
        "webhooks/apply/fetching.py",
        "return older(shown, read_version(event.version)) and now - event.received_at < LAG_LIMIT",
        "return False",
        ("tests/test_older_states.py::test_an_api_that_shows_less_than_the_event_says_is_asked_again",),
    ),
    Mutation(
        "another object is taken for the one that was asked for",
        "webhooks/provider.py",
        "    if as_text(dig(found, name)) != id_:",
        "    if False:",
        ("tests/test_api.py::test_an_answer_that_is_no_object_never_replaces_a_copy",),
    ),
    Mutation(
        "an object that is gone leaves its copy",
        "webhooks/apply/writing.py",
        '"deleted_at": as_of if gone else None',
        '"deleted_at": None',
        (
            "tests/test_fresh.py::test_what_is_gone_is_gone_and_a_new_object_is_waited_for",
            "tests/test_cli_runs.py::test_explain_says_that_the_object_is_gone",
        ),
    ),
    # -- once
    Mutation(
        "the ledger is not asked",
        "webhooks/apply/writing.py",
        "elif not self._enter(handler, [event]):",
        "elif not self._enter(handler, [event]) and False:",
        (
            f"{SPINE}::test_a64_a_task_that_is_given_out_twice_is_done_once_also_where_its_lease_is_too_short",
            f"{FLOWS}::test_two_workers_with_the_same_event_at_the_same_instant_apply_it_once",
            f"{FLOWS}::test_an_increment_happens_once_whatever_is_delivered_and_whoever_crashes",
        ),
    ),
    Mutation(
        "the ledger row is not written",
        "webhooks/apply/writing.py",
        "return set(self.session.execute(self.statements.enter, values).scalars())",
        "return set(values['ids'])",
        (f"{FLOWS}::test_a_processed_row_is_written_with_the_work_or_not_at_all",),
    ),
    Mutation(
        "a worker that slept past its lease commits all the same",
        "webhooks/apply/writing.py",
        "if done.rowcount != len(ids):",
        "if False:",
        (f"{RACES}::test_a_worker_that_slept_past_its_lease_writes_nothing",),
    ),
    Mutation(
        "whoever comes late may close what another one holds",
        "webhooks/apply/statements.py",
        " WHERE id IN :ids AND claim_no = :claim_no AND state = 'applying'",
        " WHERE id IN :ids AND :claim_no > 0",
        (f"{RACES}::test_a_worker_that_slept_past_its_lease_writes_nothing",),
    ),
    Mutation(
        "a claim is not marked",
        "webhooks/inbox/sql.py",
        "UPDATE webhook_events AS e SET state = 'applying', claim_no = :claim_no, claimed_at = {now}, due_at = :lease_ends,",
        "UPDATE webhook_events AS e SET claim_no = :claim_no, claimed_at = {now}, due_at = :lease_ends,",
        (f"{FLOWS}::test_four_events_in_one_claim_are_one_shipment",),
    ),
    Mutation(
        "a handler may commit",
        "webhooks/apply/running.py",
        "if session.info.get(_INFO) and session.get_nested_transaction() is None:",
        "if False:",
        (f"{FLOWS}::test_a_handler_that_ends_the_transaction_is_stopped",),
    ),
    Mutation(
        "a flow is decided by everybody",
        "webhooks/apply/writing.py",
        "if self.session.execute(self.statements.decide, row).first() is None:",
        "if self.session.execute(self.statements.decide, row).first() is False:",
        (f"{FLOWS}::test_four_events_in_every_order_doubled_are_one_shipment_and_one_receipt",),
    ),
    Mutation(
        "a copy under another id is applied",
        "webhooks/apply/writing.py",
        "        if self.endpoint.provider.guards_body:",
        "        if False:",
        (f"{DOOR}::test_a_body_that_comes_again_under_another_unsigned_id_is_applied_once",),
    ),
    # -- failures
    Mutation(
        "one bad event holds the others of its object",
        "webhooks/apply/__init__.py",
        "if len(group.events) > 1 and is_the_events_own(error):",
        "if False:",
        (f"{SPINE}::test_an_event_that_fails_does_not_hold_the_others_of_its_object",),
    ),
    Mutation(
        "what always fails is tried for ever",
        "webhooks/apply/__init__.py",
        "if counts and event.attempts >= endpoint.max_attempts:",
        "if False:",
        (f"{SPINE}::test_a68_an_event_whose_handler_always_fails_ends_as_a_dead_letter_and_holds_nobody",),
    ),
    Mutation(
        "a provider that asks to wait is asked again",
        "webhooks/apply/__init__.py",
        "if isinstance(error, RateLimited):",
        "if False:",
        ("tests/test_api.py::test_twenty_events_behind_a_limit_cost_one_call_and_no_attempt",),
    ),
    # -- effects
    Mutation(
        "an effect is called before it is marked as started",
        "webhooks/effects/outbox.py",
        '                "state": "started",\n',
        '                "state": "recorded",\n',
        (f"{EFFECTS}::test_an_effect_is_started_in_the_database_before_it_is_called",),
    ),
    Mutation(
        "what must not be repeated is repeated",
        "webhooks/effects/outbox.py",
        'if not definition.idempotent or (row.state == "started" and row.attempts >= definition.max_attempts):',
        'if row.state == "started" and row.attempts >= definition.max_attempts:',
        (f"{EFFECTS}::test_a_crash_in_the_middle_of_one_that_must_not_be_repeated_is_unknown",),
    ),
    Mutation(
        "an exception counts as a call that did nothing",
        "webhooks/effects/calling.py",
        "if effect.idempotent and taken.attempts < effect.max_attempts:",
        "if taken.attempts < effect.max_attempts:",
        (f"{EFFECTS}::test_an_exception_leaves_one_that_must_not_be_repeated_unknown",),
    ),
    Mutation(
        "every event has the same idempotency key",
        "webhooks/effects/__init__.py",
        '"event", running.event.endpoint, running.event.dedup_key, running.handler, self.name',
        '"event", running.event.endpoint, running.handler, self.name',
        (f"{EFFECTS}::test_the_same_event_twice_is_one_effect_and_another_handler_or_event_is_another",),
    ),
    Mutation(
        "a worker whose effect another one calls by now has the last word",
        "webhooks/effects/outbox.py",
        "mine = and_(c.idempotency_key == taken.key, c.call_no == taken.call_no)",
        "mine = c.idempotency_key == taken.key",
        (f"{EFFECTS}::test_a_worker_whose_effect_another_one_calls_by_now_has_nothing_to_say_any_more",),
    ),
)
