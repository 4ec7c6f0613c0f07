"""The statements that differ per database."""

from __future__ import annotations

__all__ = [
    "AGAIN_SQLITE",
    "ARRIVAL",
    "CLAIM_POSTGRESQL",
    "CLAIM_SQLITE",
    "FAIR_CLAIM_POSTGRESQL",
    "FAIR_CLAIM_SQLITE",
    "IS_UP",
    "KEEP_SQLITE",
    "KEPT_POSTGRESQL",
    "KEPT_SQLITE",
    "MARK_POSTGRESQL",
    "MARK_SQLITE",
    "NONCE_POSTGRESQL",
    "NONCE_SQLITE",
    "RECORD_POSTGRESQL",
    "RECORD_SQLITE",
    "REFUSED_POSTGRESQL",
    "REFUSED_SQLITE",
]

ARRIVAL = {
    "endpoint": "text",
    "dedup_key": "text",
    "origin": "text",
    "type": "text",
    "object_kind": "text",
    "object_id": "text",
    "object_path": "text",
    "account": "text",
    "livemode": "boolean",
    "gone": "boolean",
    "version": "text",
    "occurred_at": "timestamptz",
    "deliveries": "integer",
    "digest": "text",
    "secret": "text",
    "correlation": "text",
    "state": "text",
    "outcome": "text",
    "error": "text",
    "body": "bytea",
    "headers": "text",
    "received_at": "timestamptz",
    "sealed": "text",
}
"""The fields of an arrival, in the order in which the statements take them."""

_COPIED = [name for name in ARRIVAL if name not in {"body", "headers", "received_at", "sealed"}]
_INSERTED = ", ".join([*_COPIED, "received_at", "last_delivery_at", "attempts", "due_at", "finished_at"])

# A delivery of a dead event arms it for one more try; what cannot be read would not become readable by that.
_REARMED = "{new} > 0 AND e.state = 'dead' AND coalesce(e.outcome, '') <> 'unreadable'"
_PG_REARMED = _REARMED.format(new="excluded.deliveries")

# One statement, so that of two deliveries at once only one is new, and so that a burst costs one round trip and one
# commit. A key may stand in `arrived` only once: a row cannot be touched twice.
RECORD_POSTGRESQL = f"""
WITH arrived AS (
  SELECT * FROM unnest({", ".join(f"%b::{kind}[]" for kind in ARRIVAL.values())})
    WITH ORDINALITY AS a ({", ".join(ARRIVAL)}, position)
), recorded AS (
  INSERT INTO webhook_events AS e ({_INSERTED})
  SELECT {", ".join(_COPIED)}, coalesce(received_at, now()), coalesce(received_at, now()), 0, now(), CASE WHEN state IN ('dead', 'ignored') THEN now() END
  FROM arrived ORDER BY position
  ON CONFLICT (endpoint, dedup_key) DO UPDATE SET
    deliveries = e.deliveries + excluded.deliveries,
    last_delivery_at = greatest(e.last_delivery_at, excluded.last_delivery_at),
    secret = CASE WHEN e.secret IS NULL THEN excluded.secret
                  WHEN excluded.secret IS NULL OR strpos(e.secret, excluded.secret) > 0 OR length(e.secret) > 200
                  THEN e.secret ELSE e.secret || ',' || excluded.secret END,
    attempts = CASE WHEN {_PG_REARMED} THEN greatest(e.attempts - 1, 0) ELSE e.attempts END,
    due_at = CASE WHEN {_PG_REARMED} THEN now() ELSE e.due_at END,
    finished_at = CASE WHEN {_PG_REARMED} THEN NULL ELSE e.finished_at END,
    state = CASE WHEN {_PG_REARMED} THEN 'pending' ELSE e.state END
  RETURNING id, endpoint, dedup_key, (xmax = 0) AS new
), kept AS (
  INSERT INTO webhook_bodies (event_id, body, headers, sealed)
  SELECT r.id, a.body, a.headers::json, a.sealed FROM recorded r JOIN arrived a USING (endpoint, dedup_key) WHERE r.new
)
SELECT id, endpoint, dedup_key, new FROM recorded
"""

IS_UP = "SELECT count(*) FROM webhook_events WHERE id < 0"

NONCE_POSTGRESQL = """
INSERT INTO webhook_nonces (endpoint, nonce, dedup_key, digest, used_at)
VALUES (%(endpoint)s, %(nonce)s, %(dedup_key)s, %(digest)s, clock_timestamp())
ON CONFLICT (endpoint, nonce) DO UPDATE SET used_at = webhook_nonces.used_at RETURNING dedup_key, digest
"""
REFUSED_POSTGRESQL = """
INSERT INTO webhook_rejections (endpoint, received_at, reason, length, digest, headers, body, sealed)
VALUES (%(endpoint)s, clock_timestamp(), %(reason)s, %(length)s, %(digest)s, %(headers)s::json, %(body)s,
  %(sealed)s)
"""
MARK_POSTGRESQL = """
INSERT INTO webhook_marks (endpoint, name, value, at) VALUES (%(endpoint)s, %(name)s, 'true', clock_timestamp())
ON CONFLICT (endpoint, name) DO UPDATE SET at = excluded.at
"""
MARK_SQLITE = """
INSERT INTO webhook_marks (endpoint, name, value, at) VALUES (:endpoint, :name, 'true', :now)
ON CONFLICT (endpoint, name) DO UPDATE SET at = excluded.at
"""
KEPT_POSTGRESQL = """
SELECT count(*), coalesce(sum(length(body)), 0) FROM webhook_rejections
WHERE endpoint = %(endpoint)s AND body IS NOT NULL
"""
KEPT_SQLITE = """
SELECT count(*), coalesce(sum(length(body)), 0) FROM webhook_rejections
WHERE endpoint = :endpoint AND body IS NOT NULL
"""
NONCE_SQLITE = """
INSERT INTO webhook_nonces (endpoint, nonce, dedup_key, digest, used_at)
VALUES (:endpoint, :nonce, :dedup_key, :digest, :now)
ON CONFLICT (endpoint, nonce) DO UPDATE SET used_at = used_at RETURNING dedup_key, digest
"""
REFUSED_SQLITE = """
INSERT INTO webhook_rejections (endpoint, received_at, reason, length, digest, headers, body, sealed)
VALUES (:endpoint, :now, :reason, :length, :digest, :headers, :body, :sealed)
"""

# SQLite has one writer at a time, so two statements within BEGIN IMMEDIATE are as good as one.
RECORD_SQLITE = f"""
INSERT INTO webhook_events ({_INSERTED})
VALUES ({", ".join(":" + name for name in _COPIED)}, :received_at, :received_at, 0, :now,
  CASE WHEN :state IN ('dead', 'ignored') THEN :now END)
ON CONFLICT (endpoint, dedup_key) DO NOTHING RETURNING id
"""
KEEP_SQLITE = (
    "INSERT INTO webhook_bodies (event_id, body, headers, sealed) VALUES (:id, :body, :headers, :sealed)"
)
_LITE_REARMED = _REARMED.format(new=":deliveries")
AGAIN_SQLITE = f"""
UPDATE webhook_events AS e SET
  deliveries = e.deliveries + :deliveries,
  last_delivery_at = max(e.last_delivery_at, :received_at),
  secret = CASE WHEN e.secret IS NULL THEN :secret
                WHEN :secret IS NULL OR instr(e.secret, :secret) > 0 OR length(e.secret) > 200
                THEN e.secret ELSE e.secret || ',' || :secret END,
  attempts = CASE WHEN {_LITE_REARMED} THEN max(e.attempts - 1, 0) ELSE e.attempts END,
  due_at = CASE WHEN {_LITE_REARMED} THEN :now ELSE e.due_at END,
  finished_at = CASE WHEN {_LITE_REARMED} THEN NULL ELSE e.finished_at END,
  state = CASE WHEN {_LITE_REARMED} THEN 'pending' ELSE e.state END
WHERE endpoint = :endpoint AND dedup_key = :dedup_key RETURNING id
"""

_CLAIMED = """e.id, e.endpoint, e.dedup_key, e.origin, e.type, e.object_kind, e.object_id, e.object_path, e.account,
 e.livemode, e.gone, e.version, e.occurred_at, e.received_at, e.deliveries, e.digest, e.correlation, e.attempts"""

# A count and not NOT EXISTS, which a planner may turn into a join with the whole backlog.
_FREE = """(SELECT count(*) FROM webhook_holds h WHERE h.endpoint = e.endpoint AND h.account IN ('', e.account)
  AND (h.until IS NULL OR h.until > {now})) = 0"""

# {state} and {only} narrow what is taken: see Inbox.claim. Written so that every planner walks the index on what is due,
# in its order, and stops at the limit, also with statistics of a table that was empty yesterday: the first test of the
# state is the partial index's own condition, and no index can be searched for `endpoint || ''`.
_DUE = (
    """
  SELECT e.id, e.endpoint, e.account, e.object_kind, e.object_id FROM webhook_events e
  WHERE e.state IN ('pending', 'applying') AND e.state = {state} AND e.due_at <= {now}
    AND e.endpoint || '' IN {endpoints}
    {only} AND """
    + _FREE
    + """
  ORDER BY e.due_at LIMIT :limit
"""
)

# The other open events of one claimed object. The index on objects has the state as its last column, and is the only one that
# gives them in its order: that decides for it also where a planner takes the table for empty, and any index for as good.
# A range and not `=` or BETWEEN: it must not be taken for the condition of the indexes on what is due.
_MATES = """SELECT o.id FROM webhook_events o WHERE o.endpoint = a.endpoint AND o.object_kind = a.object_kind
    AND o.object_id = a.object_id AND o.account = a.account AND o.state >= {state} AND o.state < {state} || '!'
    AND o.due_at <= {now} ORDER BY o.state"""

# The lanes: each endpoint and account that has something due and is not held, from `:endpoint, :account` on. Found by one
# look into the index per lane, however many events wait in it; the first of a lane is the one that is due first. BETWEEN is
# the condition of the index on lanes and of no other: the one on what is due would be walked over all other lanes. An
# expression and not the bare column: SQLite searches for both only then, and would walk over the lane that it has.
_NEXT = """SELECT o.id FROM webhook_events o WHERE o.state BETWEEN 'pending' AND 'pending'
    AND (o.endpoint, o.account) > ({endpoint}, {account})
    ORDER BY o.endpoint, o.account, o.due_at LIMIT 1"""
_VISITED = (
    """
RECURSIVE visited AS (
  SELECT n.endpoint, n.account, n.due_at, 1 AS visits FROM webhook_events n WHERE n.id = ("""
    + _NEXT.format(endpoint=":after_endpoint", account=":after_account")
    + """)
  UNION ALL
  SELECT n.endpoint, n.account, n.due_at, v.visits + 1 FROM visited v JOIN webhook_events n ON n.id = ("""
    + _NEXT.format(endpoint="v.endpoint || ''", account="v.account || ''")
    + """) WHERE v.visits < :visits
), """
)
_LANES = (
    _VISITED
    + """lanes AS MATERIALIZED (
  SELECT e.endpoint, e.account FROM visited e WHERE e.due_at <= {now} AND e.endpoint IN {endpoints} AND """
    + _FREE
    + """ LIMIT :lanes
), """
)

# When the first event is due that is not held, and when the first hold ends that holds one.
NEXT_DUE = (
    "WITH "
    + _VISITED
    + """lanes AS MATERIALIZED (
  SELECT endpoint, account, due_at FROM visited WHERE endpoint IN {endpoints}
) SELECT (SELECT min(e.due_at) FROM lanes e WHERE """
    + _FREE
    + """) AS free, (SELECT min(h.until) FROM webhook_holds h WHERE h.until > {now} AND EXISTS (
  SELECT 1 FROM lanes l WHERE l.endpoint = h.endpoint AND h.account IN ('', l.account))) AS held, {now} AS now
"""
)

# Each lane's share, and never nothing. Most of a claim is what waits longest; a part is what came last, so that new events
# need not wait for a backlog of their own lane.
_SHARE = """e.state BETWEEN 'pending' AND 'pending' AND e.endpoint = l.endpoint AND e.account = l.account AND e.due_at <= {{now}}
    ORDER BY e.due_at {order} LIMIT {part} / (SELECT count(*) FROM lanes)"""
_OLDEST = _SHARE.format(order="ASC", part="((SELECT count(*) FROM lanes) - 1 + :oldest)")
_NEWEST = _SHARE.format(order="DESC", part=":newest")
_COLUMNS = "e.id, e.endpoint, e.account, e.object_kind, e.object_id"
_FAIR_POSTGRESQL = "".join(
    f"""{name} AS MATERIALIZED (
  SELECT f.* FROM lanes l CROSS JOIN LATERAL (
    SELECT {_COLUMNS} FROM webhook_events e WHERE {share} FOR UPDATE OF e SKIP LOCKED) f
), """
    for name, share in (("oldest", _OLDEST), ("newest", _NEWEST))
)
_FAIR_SQLITE = "".join(
    f"""{name} AS MATERIALIZED (
  SELECT {_COLUMNS.replace("e.", "f.")} FROM lanes l JOIN webhook_events f ON f.id IN (
    SELECT e.id FROM webhook_events e WHERE {share})
), """
    for name, share in (("oldest", _OLDEST), ("newest", _NEWEST))
)
# The limit is above what there can be. It tells the planner, who cannot know what a share is, that it is not much.
_FAIR_DUE = "SELECT * FROM oldest UNION SELECT * FROM newest LIMIT :most"

# `FOR UPDATE SKIP LOCKED`: workers do not wait for each other. The claim number is drawn before anything is fetched,
# from a sequence, so that no clock has a say in what is newer.
_TAKE_POSTGRESQL = (
    """
), claim AS (
  INSERT INTO webhook_claims (worker, claimed_at) SELECT :worker, clock_timestamp() WHERE EXISTS (SELECT 1 FROM due)
  RETURNING claim_no, claimed_at
), about AS (
  SELECT DISTINCT endpoint, account, object_kind, object_id FROM due WHERE object_id IS NOT NULL
), mates AS (
  SELECT m.id FROM about a CROSS JOIN LATERAL ("""
    + _MATES
    + """ LIMIT :mates FOR UPDATE SKIP LOCKED) m
), taken AS (SELECT id FROM due UNION SELECT id FROM mates)
UPDATE webhook_events e SET state = 'applying', claim_no = claim.claim_no, claimed_at = claim.claimed_at,
  due_at = clock_timestamp() + :lease, attempts = e.attempts + 1
FROM taken, claim WHERE e.id = taken.id
RETURNING """
    + _CLAIMED
    + ", claim.claim_no, claim.claimed_at"
)
CLAIM_POSTGRESQL = f"WITH due AS MATERIALIZED ({_DUE} FOR UPDATE OF e SKIP LOCKED{_TAKE_POSTGRESQL}"
FAIR_CLAIM_POSTGRESQL = f"WITH {_LANES}{_FAIR_POSTGRESQL}due AS MATERIALIZED ({_FAIR_DUE}{_TAKE_POSTGRESQL}"

_TAKE_SQLITE = (
    """
), about AS (
  SELECT DISTINCT endpoint, account, object_kind, object_id FROM due WHERE object_id IS NOT NULL
), mates AS (
  SELECT m.id FROM about a JOIN webhook_events m ON m.id IN ("""
    + _MATES
    + """ LIMIT :mates)
)
UPDATE webhook_events AS e SET state = 'applying', claim_no = :claim_no, claimed_at = {now}, due_at = :lease_ends,
  attempts = attempts + 1
WHERE id IN (SELECT id FROM due UNION SELECT id FROM mates)
RETURNING """
    + _CLAIMED.replace("e.", "")
    + ", claim_no, claimed_at"
)
CLAIM_SQLITE = f"WITH due AS MATERIALIZED ({_DUE}{_TAKE_SQLITE}"
FAIR_CLAIM_SQLITE = f"WITH {_LANES}{_FAIR_SQLITE}due AS MATERIALIZED ({_FAIR_DUE}{_TAKE_SQLITE}"
