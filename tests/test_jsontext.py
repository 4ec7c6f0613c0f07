"""JSON and times as providers send them: what is read is right, and what is not is Unreadable or unknown."""

from __future__ import annotations

import json
import math
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from webhooks import jsontext
from webhooks.errors import NotFetchable, RetryLater, Unreadable
from webhooks.provider import as_text, dig, instant, listed, path_segment

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=[]))
"""With NUL and lone surrogates."""

DOCUMENTS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**60), 10**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4),
    max_leaves=20,
)


def expected(value: Any) -> Any:
    """The document with every NUL and every lone surrogate replaced, by other means than the code's."""
    if isinstance(value, str):
        return "".join("\ufffd" if c == "\0" or "\ud800" <= c <= "\udfff" else c for c in value)
    if isinstance(value, dict):
        return {expected(key): expected(item) for key, item in value.items()}
    return [expected(item) for item in value] if isinstance(value, list) else value


@given(DOCUMENTS, st.booleans(), st.sampled_from([None, 2]), st.booleans())
def test_every_document_is_read_as_it_is_but_for_what_no_column_can_hold(
    document: Any, plain: bool, indent: int | None, mark: bool
) -> None:
    """A06, A34, A35, A39: with or without escapes, blanks and a byte order mark."""
    text = json.dumps(document, ensure_ascii=plain, indent=indent)
    # A pair of escapes is one character, so what is compared is what the text says.
    body = (b"\xef\xbb\xbf" if mark else b"") + text.encode("utf-8", "surrogatepass")
    try:
        found = jsontext.loads(body)
    except Unreadable:
        assert not plain
        assert any("\ud800" <= c <= "\udfff" for c in text)  # which is no UTF-8
    else:
        assert found == expected(json.loads(text))
        assert json.dumps(found, ensure_ascii=False).encode()
        assert "\0" not in json.dumps(found, ensure_ascii=False)
        assert "\\u0000" not in json.dumps(found)


@given(st.binary() | st.text().map(str.encode) | DOCUMENTS.map(lambda d: json.dumps(d).encode()[:-1]))
@example(b"[" * 20_000 + b"]" * 20_000)
@example(b'{"a":' * 20_000)
@example(b"9" * 5_000)
@example(b'{"a":1e999}')
@example(b"-")
@example(b"\xef\xbb\xbf")
def test_bytes_are_read_or_unreadable_and_nothing_else(body: bytes) -> None:
    """A36, A37, A38"""
    with suppress(Unreadable):
        found = jsontext.loads(body)
        # Whatever is accepted is JSON to the standard library as well.
        assert found == expected(json.loads(body.removeprefix(b"\xef\xbb\xbf")))


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e400", "-1e400"])
@pytest.mark.parametrize("around", ["{}", '{{"a":{}}}', "[{}]", '{{"s":"\\ud83d","a":{}}}'])
def test_what_is_no_number_is_unreadable(word: str, around: str) -> None:
    """A37: PostgreSQL refuses it too, and Python's own reader does not."""
    with pytest.raises(Unreadable):
        jsontext.loads(around.format(word).encode())


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_the_depth_is_limited_at_one_place_for_both_readers(opening: bytes) -> None:
    """A36"""
    closing = b"]" if opening == b"[" else b"}"
    for extra in (b"1", rb'"\ud83d"'):  # the second one takes the slow way
        fine = opening * jsontext.MAX_DEPTH + b"1" + closing * jsontext.MAX_DEPTH
        assert jsontext.loads(b"[" + extra + b"," + opening * 100 + b"1" + closing * 100 + b"]")
        assert jsontext.loads(fine)
        with pytest.raises(Unreadable, match="deep"):
            jsontext.loads(b"[" + extra + b"," + fine + b"]")


def test_many_brackets_are_not_deep() -> None:
    assert len(jsontext.loads(b"[" + b",".join([b"[]"] * 5_000) + b"]")) == 5_000
    assert jsontext.loads(b'"' + b"[" * 5_000 + b'"') == "[" * 5_000


@given(st.integers(-(10**4000), 10**4000))
def test_integers_are_exact(number: int) -> None:
    """A39"""
    assert jsontext.loads(b'{"id":%d}' % number)["id"] == number


@given(DOCUMENTS)
def test_cleaning_twice_is_cleaning_once_and_leaves_what_can_be_encoded(document: Any) -> None:
    cleaned = jsontext.clean(document)
    assert cleaned == expected(document)
    assert jsontext.clean(cleaned) == cleaned
    assert jsontext.loads(jsontext.dumps(cleaned)) == cleaned


def shuffled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shuffled(item) for key, item in reversed(value.items())}
    return [shuffled(item) for item in value] if isinstance(value, list) else value


@given(DOCUMENTS, DOCUMENTS)
def test_equal_documents_have_one_digest_whatever_the_order_of_their_keys(one: Any, two: Any) -> None:
    one, two = jsontext.clean(one), jsontext.clean(two)
    assert jsontext.digest(one) == jsontext.digest(shuffled(one))
    if json.dumps(one, sort_keys=True) != json.dumps(two, sort_keys=True):
        assert jsontext.digest(one) != jsontext.digest(two)


# -- times


SAME = datetime(2026, 1, 1, 0, 4, 5, tzinfo=UTC)

SPELLINGS: list[Any] = [
    1767225845,
    1767225845.0,
    1767225845000,
    1767225845000000,
    1767225845000000000,
    "1767225845",
    "1767225845000",
    "1767225845.000",
    " 1767225845 ",
    "2026-01-01T00:04:05Z",
    "2026-01-01T00:04:05.000Z",
    "2026-01-01T00:04:05.0000000Z",
    "2026-01-01T00:04:05+00:00",
    "2026-01-01T00:04:05+0000",
    "2025-12-31T19:04:05-05:00",
    "2026-01-01T05:34:05+05:30",
    "2026-01-01 00:04:05",
    "2026-01-01 00:04:05 UTC",
    "2026-01-01t00:04:05z",
    datetime(2026, 1, 1, 0, 4, 5),  # noqa: DTZ001 - what has no zone is UTC
    datetime(2025, 12, 31, 19, 4, 5, tzinfo=timezone(timedelta(hours=-5))),
]


@pytest.mark.parametrize("value", SPELLINGS, ids=str)
def test_every_spelling_of_one_instant_is_that_instant(value: Any) -> None:
    """A45"""
    assert instant(value) == SAME
    found = instant(value)
    assert found is not None
    assert found.tzinfo is UTC


def test_fractions_of_any_length_are_read() -> None:
    """A45"""
    assert instant("2026-01-01T00:04:05.1234567Z") == SAME.replace(microsecond=123456)
    assert instant("2026-01-01T00:04:05.1Z") == SAME.replace(microsecond=100000)
    assert instant("2026-01-01T00:04:05.123456789012+00:00") == SAME.replace(microsecond=123456)


NO_TIMES: list[Any] = [
    None,
    True,
    False,
    "",
    " ",
    "now",
    "inf",
    "-inf",
    "infinity",
    "nan",
    "1e999",
    "1e5",
    "1_000",
    "0x10",
    "٣٤٥",
    "2026-13-01T00:00:00Z",
    "2026-02-30T00:00:00Z",
    "2026-01-01T24:00:01Z",
    "2026-01-01T00:00:00+99:00",
    "2026-01-01",
    "0001-01-01T00:00:00Z",
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59Z",
    "9999-12-31T23:59:59-14:00",
    -62135596800,
    -(10**20),
    10**400,
    1e300,
    math.inf,
    -math.inf,
    math.nan,
    "9" * 31,
    "9" * 5000,
    datetime(1, 1, 1),  # noqa: DTZ001 - what has no zone is UTC
    datetime(9999, 12, 31),  # noqa: DTZ001 - likewise
    [],
    {},
    [1767225845],
    b"1767225845",
]


@pytest.mark.parametrize("value", NO_TIMES, ids=lambda value: repr(value)[:30])
def test_what_is_no_time_is_unknown(value: Any) -> None:
    """A45: unknown, and neither an error nor 'old'."""
    assert instant(value) is None


@given(st.datetimes(datetime(1900, 1, 1), datetime(5000, 1, 1), timezones=st.timezones()))  # noqa: DTZ001 - the zone is the other argument
def test_an_aware_time_is_found_again_in_any_form(moment: datetime) -> None:
    """A45"""
    moment = moment.astimezone(UTC)
    assert instant(moment.isoformat()) == moment
    assert instant(moment.isoformat().replace("+00:00", "Z")) == moment
    seconds = math.floor(moment.timestamp())
    if abs(seconds) > 10**8:  # smaller ones are seconds in any unit
        whole = datetime.fromtimestamp(seconds, UTC)
        for value in (seconds, seconds * 1000, seconds * 1_000_000, str(seconds), str(seconds * 1000)):
            assert instant(value) == whole


@given(
    st.text(max_size=40)
    | st.from_regex(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)?", fullmatch=True)
    | st.integers()
    | st.floats()
    | st.floats().map(str)
    | st.datetimes()
    | st.binary(max_size=9)
)
def test_no_value_is_an_error_and_every_result_can_be_stored(value: Any) -> None:
    """A45"""
    found = instant(value)
    if found is not None:
        assert found.tzinfo is UTC
        assert 1000 <= found.year < 9000
        assert len(found.strftime("%Y-%m-%dT%H:%M:%S.%fZ")) == 27


# -- ids and keys


@given(st.integers())
def test_a_whole_number_is_an_id_in_full(number: int) -> None:
    """A39"""
    assert as_text(number) == str(number)


@pytest.mark.parametrize("value", [None, True, False, 1.0, 9007199254740993.0, [], {}, ["x"], b"x"])
def test_what_is_no_text_and_no_whole_number_is_no_id(value: Any) -> None:
    assert as_text(value) == ""


@given(ANY_TEXT)
@example(".")
@example("..")
@example("a/b")
@example("x" * 256)
def test_a_segment_stays_one_segment(value: str) -> None:
    """A86"""
    try:
        found = path_segment(value)
    except NotFetchable:
        assert not value or set(value) == {"."} or len(value) > 255 or not value.isprintable()
    else:
        assert found.isascii()
        assert not set(found) & set("/?#\\ \r\n")
        assert found not in {"", ".", ".."}


@given(DOCUMENTS, st.lists(st.text(max_size=3), max_size=4))
def test_digging_never_fails(document: Any, path: list[str]) -> None:
    found = dig(document, *path)
    for key in path:
        document = document.get(key) if isinstance(document, dict) else None
    assert found == document


@given(DOCUMENTS)
def test_a_listing_is_a_list_of_objects_or_an_error(document: Any) -> None:
    is_one = isinstance(document, list) and all(isinstance(item, dict) for item in document)
    for answer, path in ((document, ()), ({"data": document}, ("data",))):
        if is_one:
            assert listed(answer, *path) == document
        else:
            with pytest.raises(RetryLater):
                listed(answer, *path)


def test_reading_takes_no_more_stack_than_there_is() -> None:
    """A36: the door may be called from deep inside a host's own code."""

    def deeper(left: int) -> None:
        if left:
            return deeper(left - 1)
        with pytest.raises(Unreadable):
            jsontext.loads(b"[" * 20_000 + b"]" * 20_000)
        return None

    deeper(sys.getrecursionlimit() // 2)
