"""Beside the providers' own libraries: what they sign we accept, what they refuse we refuse, and each difference is known.

`DIFFERENCES` holds where we part, and `docs/reference/differences.md` is made of it:
`python -m tests.providers.test_differential > docs/reference/differences.md`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.providers.sdks import (
    ACCEPTS,
    BODY,
    CRASHES,
    HEX,
    ITEM,
    REFUSES,
    SDKS,
    URL,
    found,
    good,
    now,
    ours,
    theirs,
)
from webhooks import providers
from webhooks.provider import Request, Sample

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "differences.md"


@dataclass(frozen=True)
class Difference:
    case: str
    theirs: str
    ours: str
    names: tuple[str, ...]
    reason: str


EVERYBODY = tuple(SDKS)
STANDARD = ("clerk", "svix", "standard-webhooks", "supabase")

DIFFERENCES = (
    Difference(
        "a byte beyond ASCII in the signature",
        CRASHES,
        REFUSES,
        tuple(name for name in EVERYBODY if name != "twilio"),
        "Theirs compares text, and `compare_digest` raises TypeError: anybody can make an error 500. Ours compares bytes.",
    ),
    Difference(
        "no signature",
        CRASHES,
        REFUSES,
        ("razorpay", "twilio", "mailgun", "adyen-items", "adyen-header"),
        "Theirs raises TypeError, KeyError or AttributeError; ours answers 401.",
    ),
    Difference(
        "an empty secret",
        ACCEPTS,
        REFUSES,
        ("github", "razorpay", "paddle", "twilio", "mailgun", "adyen-items", "adyen-header"),
        "Everybody knows the empty secret, so everybody could sign. Ours never verifies under it.",
    ),
    Difference(
        "an empty secret",
        CRASHES,
        REFUSES,
        ("shopify", "slack", *STANDARD),
        "Theirs raises while the app runs; ours refuses to start, and refuses every delivery if it was started.",
    ),
    Difference(
        "a secret of blanks",
        ACCEPTS,
        REFUSES,
        ("github", "shopify", "razorpay", "paddle", "twilio", "mailgun"),
        "A secret of blanks is an empty one that was pasted badly.",
    ),
    Difference(
        "a secret of blanks",
        CRASHES,
        REFUSES,
        ("slack", *STANDARD, "adyen-header"),
        "As with the empty secret.",
    ),
    Difference(
        "a body that is not UTF-8",
        CRASHES,
        ACCEPTS,
        ("stripe", "shopify", "slack", "razorpay", "paddle", *STANDARD),
        "Theirs decodes before it verifies. Ours verifies bytes: what is signed is recorded, as a dead letter if nobody can read it.",
    ),
    Difference(
        "an empty body",
        CRASHES,
        ACCEPTS,
        ("standard-webhooks", "supabase"),
        "Theirs parses the body as JSON in the same step. Ours records it as a dead letter.",
    ),
    Difference(
        "20 s late",
        REFUSES,
        ACCEPTS,
        ("paddle",),
        "Five seconds refuse good deliveries on a slow day. Ours takes 300 s; the ledger knows what came twice.",
    ),
    Difference(
        "20 min late",
        REFUSES,
        ACCEPTS,
        ("mailgun",),
        "Mailgun tries again for 7.5 h, and a retry is taken to carry the time of the first attempt. Each token is good once.",
    ),
    Difference(
        "20 min early",
        ACCEPTS,
        REFUSES,
        ("stripe",),
        "A time far in the future would stay good for ever.",
    ),
    Difference(
        "a time that is no number",
        CRASHES,
        REFUSES,
        ("slack", "paddle", "mailgun"),
        "Theirs raises ValueError or TypeError from `int`; ours answers 401.",
    ),
    Difference(
        "a time with a fraction",
        CRASHES,
        REFUSES,
        ("slack", "paddle", "mailgun"),
        "As with a time that is no number.",
    ),
    Difference(
        "a time with a plus",
        ACCEPTS,
        REFUSES,
        ("slack", "mailgun"),
        "`int` takes more than digits; the provider sends digits.",
    ),
    Difference(
        "two times",
        ACCEPTS,
        REFUSES,
        ("stripe", "paddle"),
        "Theirs picks one; a header that says two times is no header of the provider's.",
    ),
    Difference(
        "an unknown scheme beside",
        CRASHES,
        ACCEPTS,
        ("paddle",),
        "The provider may add a scheme at any time; it must not end our deliveries.",
    ),
    Difference(
        "the signature header in upper case",
        CRASHES,
        REFUSES,
        ("paddle",),
        "Theirs raises ValueError for a key that it does not know.",
    ),
    Difference(
        "a SHA-1 signature",
        ACCEPTS,
        REFUSES,
        ("github",),
        "GitHub sends both headers for old receivers; nobody should be able to choose the weaker.",
    ),
    Difference(
        "an entry without a comma before",
        CRASHES,
        ACCEPTS,
        STANDARD,
        "Entries that are not understood are to be skipped; a good one stands behind.",
    ),
    Difference(
        "an entry that is no base64 before",
        CRASHES,
        ACCEPTS,
        STANDARD,
        "As above. Ours compares the text of a signature and decodes nothing.",
    ),
    Difference(
        "a signature that is one letter",
        CRASHES,
        REFUSES,
        STANDARD,
        "Theirs raises ValueError; ours answers 401.",
    ),
    Difference(
        "the signature without its padding",
        CRASHES,
        REFUSES,
        STANDARD,
        "Theirs raises binascii.Error; ours answers 401.",
    ),
    Difference(
        "a user in the URL, signed without the port",
        REFUSES,
        ACCEPTS,
        ("twilio",),
        "Theirs cuts the URL at its first colon, which stands in the password.",
    ),
    Difference(
        "IPv6, signed without the port",
        REFUSES,
        ACCEPTS,
        ("twilio",),
        "Theirs cuts the URL at its first colon, which stands in the address.",
    ),
    Difference(
        "a port that is none",
        CRASHES,
        ACCEPTS,
        ("twilio",),
        "The URL is yours, and is signed as it stands.",
    ),
    Difference(
        "an item without additionalData",
        CRASHES,
        REFUSES,
        ("adyen-items",),
        "Theirs raises TypeError for null (and returns None where the field is missing); ours answers 401.",
    ),
    Difference(
        "a second item that nobody signed",
        ACCEPTS,
        REFUSES,
        ("adyen-items",),
        "Theirs verifies the first item only. A genuine item says nothing about the next.",
    ),
    Difference(
        "a colon in the PSP reference",
        ACCEPTS,
        REFUSES,
        ("adyen-items",),
        "Fields are joined by colons and nothing is escaped, so that one signature would fit two readings.",
    ),
)

HEAD = """\
# Where we differ from the providers' own libraries

The same requests are given to the provider's Python library and to us, and the verdicts are compared; a test fails at a
difference that does not stand here, and at a row that is no difference any more. Everything else is the same: what they
sign we accept, what we sign they accept, and what they refuse we refuse. "crashes" is an exception that the library does
not document as a refusal: in a view it becomes an error 500, which makes providers retry and disable endpoints.

"""


def page() -> str:
    rows = [
        f"| {d.case} | {d.theirs} | {d.ours} | {', '.join(f'`{name}`' for name in d.names)} | {d.reason} |\n"
        for d in DIFFERENCES
    ]
    libraries = ", ".join(f"`{name}`: {make().library}" for name, make in SDKS.items())
    columns = "| the request | theirs | ours | where | why |\n| --- | --- | --- | --- | --- |\n"
    return f"{HEAD}{columns}{''.join(rows)}\nThe libraries: {libraries}.\n"


@pytest.mark.parametrize("name", EVERYBODY)
def test_the_verdicts_are_the_same_but_for_the_known_differences(name: str) -> None:
    known = {d.case: (d.theirs, d.ours) for d in DIFFERENCES if name in d.names}
    assert found(name) == known


@pytest.mark.parametrize("name", EVERYBODY)
def test_the_library_accepts_what_we_sign(name: str) -> None:
    sdk = SDKS[name]()
    bare = sdk.tamper(good(sdk), lambda _: None) if sdk.provider not in {"mailgun", "adyen"} else good(sdk)
    signed = providers.get(sdk.provider).signature.sign(bare, sdk.secret, now())
    assert theirs(sdk, signed, sdk.secret) == ACCEPTS


@pytest.mark.parametrize("name", EVERYBODY)
def test_what_the_library_accepts_of_every_sample_is_what_we_sign(name: str) -> None:
    """Every event type that `flask webhooks send` knows, signed by us, is genuine to the provider's own library."""
    sdk = SDKS[name]()
    provider = providers.get(sdk.provider)
    assert provider.sample is not None
    for type_ in provider.sample_types:
        unsigned = provider.sample(Sample(type_, "id-01", datetime.now(UTC)))
        signed = provider.signature.sign(unsigned, sdk.secret, now())
        if name == "adyen-header" and b"notificationItems" in signed.body:
            continue
        if name == "adyen-items" and b"notificationItems" not in signed.body:
            continue
        if name == "mailgun" and signed.content_type != "application/json":
            continue  # the library is given the three values, wherever they came from
        assert theirs(sdk, signed, sdk.secret) == ACCEPTS, type_


def test_what_stripe_svix_twilio_and_adyen_sign_we_accept() -> None:
    """The libraries that can sign themselves."""
    from Adyen.util import generate_notification_sig, generate_payload_sig
    from stripe import WebhookSignature
    from svix.webhooks import Webhook
    from twilio.request_validator import RequestValidator

    made, moment = {name: make() for name, make in SDKS.items()}, now()
    text = WebhookSignature.generate_signature_header(BODY.decode(), made["stripe"].secret, moment)
    assert (
        ours(made["stripe"], Request("POST", URL, {"Stripe-Signature": text}, BODY), made["stripe"].secret)
        == ACCEPTS
    )

    svix = made["svix"]
    text = Webhook(svix.secret).sign("msg_01", datetime.fromtimestamp(moment, UTC), BODY.decode())
    headers = {"svix-id": "msg_01", "svix-timestamp": str(moment), "svix-signature": text}
    assert ours(svix, Request("POST", URL, headers, BODY), svix.secret) == ACCEPTS

    called = good(made["twilio"])
    text = RequestValidator(made["twilio"].secret).compute_signature(URL, dict(called.form))
    assert (
        ours(made["twilio"], called.with_headers({"X-Twilio-Signature": text}), made["twilio"].secret)
        == ACCEPTS
    )

    text = generate_payload_sig(BODY, HEX).decode()
    assert ours(made["adyen-header"], Request("POST", URL, {"HmacSignature": text}, BODY), HEX) == ACCEPTS
    item = {**ITEM, "additionalData": {"hmacSignature": generate_notification_sig(ITEM, HEX).decode()}}
    body = json.dumps({"notificationItems": [{"NotificationRequestItem": item}]}).encode()
    assert ours(made["adyen-items"], Request("POST", URL, {}, body), HEX) == ACCEPTS


def test_the_page_about_differences_is_the_table() -> None:
    assert PAGE.read_text() == page(), (
        "run: python -m tests.providers.test_differential > docs/reference/differences.md"
    )


if __name__ == "__main__":
    sys.stdout.write(page())
