"""The providers' own libraries behind one face, and the requests that are put before them and before us.

The requests are signed with nothing but `hmac`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, urlencode

from webhooks import providers
from webhooks.errors import SignatureError
from webhooks.provider import Request


def now() -> int:
    """The libraries read the clock of the machine, and Paddle's allows for five seconds: asked for in each test."""
    return int(datetime.now(UTC).timestamp())


BODY = b'{"id":"evt_01","type":"thing.updated","data":{"name":"K\xc3\xa4the"}}'
URL = "https://hooks.example.test/webhooks/it"
ACCEPTS, REFUSES, CRASHES = "accepts", "refuses", "crashes"

Change = Callable[[str], str | None]
"""A signature as it is sent → as it should be sent instead; None: not at all."""


def mac(key: bytes, *parts: bytes, algorithm: str = "sha256") -> bytes:
    return hmac.new(key, b"".join(parts), algorithm).digest()


def header(name: str) -> Callable[[Request, Change], Request]:
    def tamper(request: Request, change: Change) -> Request:
        value = change(request.headers[name])
        rest = {n: v for n, v in request.headers.items() if n.lower() != name.lower()}
        return replace(request, headers=rest if value is None else {**rest, name: value})

    return tamper


@dataclass(frozen=True)
class Sdk:
    """One library, and how its provider signs."""

    provider: str
    library: str
    check: Callable[[Request, str], Any]
    """Returns something false, or raises one of `refusals`, for what it refuses."""
    refusals: tuple[type[Exception], ...]
    make: Callable[[str, bytes, str], Request]
    """A request, signed under this secret, with this body, at this time (Unix seconds)."""
    tamper: Callable[[Request, Change], Request]
    secret: str = "whsec_" + base64.b64encode(b"a key of some thirty-two bytes..").decode()
    other: str = "whsec_" + base64.b64encode(b"another key of thirty-two bytes.").decode()
    empty: str = ""
    body: bytes = BODY
    timed: bool = True
    signs_body: bool = True
    extra: Mapping[str, Callable[[Sdk], Request]] = field(default_factory=dict)


def good(sdk: Sdk, body: bytes | None = None, at: str | None = None) -> Request:
    return sdk.make(sdk.secret, sdk.body if body is None else body, str(now()) if at is None else at)


def cases(sdk: Sdk) -> dict[str, tuple[Request, str]]:
    """Name → the request, and the secret that both sides hold."""
    ours, moment = sdk.secret, now()
    found = {
        "what is signed": (good(sdk), ours),
        "another secret": (good(sdk), sdk.other),
        "no signature": (sdk.tamper(good(sdk), lambda _: None), ours),
        "an empty signature": (sdk.tamper(good(sdk), lambda _: ""), ours),
        "a byte beyond ASCII in the signature": (sdk.tamper(good(sdk), lambda it: it[:-1] + "\xe9"), ours),
        "a signature that is one letter": (sdk.tamper(good(sdk), lambda _: "A"), ours),
        "the signature header in upper case": (sdk.tamper(good(sdk), str.upper), ours),
        "a blank behind the signature": (sdk.tamper(good(sdk), lambda it: it + " "), ours),
        "an empty secret": (sdk.make(sdk.empty, sdk.body, str(moment)), sdk.empty),
        "a secret of blanks": (sdk.make("   ", sdk.body, str(moment)), "   "),
    }
    if sdk.signs_body:
        found["a changed body"] = (replace(good(sdk), body=sdk.body.replace(b"0", b"1")), ours)
        found["a body that is not UTF-8"] = (good(sdk, b'{"id":"\xff"}'), ours)
        found["an empty body"] = (good(sdk, b""), ours)
    if sdk.timed:
        found["20 s late"] = (good(sdk, at=str(moment - 20)), ours)
        found["20 min late"] = (good(sdk, at=str(moment - 1200)), ours)
        found["20 min early"] = (good(sdk, at=str(moment + 1200)), ours)
        found["two days late"] = (good(sdk, at=str(moment - 2 * 86400)), ours)
        found["a time that is no number"] = (good(sdk, at="soon"), ours)
        found["a time with a plus"] = (good(sdk, at=f"+{moment}"), ours)
        found["a time with a fraction"] = (good(sdk, at=f"{moment}.5"), ours)
    return found | {name: (make(sdk), ours) for name, make in sdk.extra.items()}


# -- the libraries


def timestamped(
    name: str, time: str, version: str, separator: str, joiner: bytes
) -> Callable[[str, bytes, str], Request]:
    def make(secret: str, body: bytes, at: str) -> Request:
        signature = mac(secret.encode(), at.encode(), joiner, body).hex()
        return Request("POST", URL, {name: f"{time}={at}{separator}{version}={signature}"}, body)

    return make


def rotated(separator: str, version: str) -> Mapping[str, Callable[[Sdk], Request]]:
    wrong = f"{version}={'0' * 64}"
    return {
        "two signatures, the first one good": lambda sdk: sdk.tamper(
            good(sdk), lambda it: f"{it}{separator}{wrong}"
        ),
        "two signatures, the second one good": lambda sdk: sdk.tamper(
            good(sdk), lambda it: it.replace(separator, f"{separator}{wrong}{separator}", 1)
        ),
        "an unknown scheme beside": lambda sdk: sdk.tamper(good(sdk), lambda it: f"{it}{separator}z9=abc"),
        "two times": lambda sdk: sdk.tamper(
            good(sdk), lambda it: f"{it}{separator}{it.partition(separator)[0]}"
        ),
    }


def stripe() -> Sdk:
    from stripe import SignatureVerificationError, WebhookSignature

    return Sdk(
        "stripe",
        "stripe",
        lambda request, secret: WebhookSignature.verify_header(
            request.body, request.headers.get("Stripe-Signature"), secret, 300
        ),
        (SignatureVerificationError,),
        timestamped("Stripe-Signature", "t", "v1", ",", b"."),
        header("Stripe-Signature"),
        extra=rotated(",", "v1"),
    )


def paddle() -> Sdk:
    from paddle_billing.Notifications import Secret, Verifier

    def check(request: Request, secret: str) -> Any:
        return Verifier().verify(request, Secret(secret))

    return Sdk(
        "paddle",
        "paddle-python-sdk",
        check,
        (ConnectionRefusedError,),
        timestamped("Paddle-Signature", "ts", "h1", ";", b":"),
        header("Paddle-Signature"),
        extra=rotated(";", "h1"),
    )


def slack() -> Sdk:
    from slack_sdk.signature import SignatureVerifier

    def make(secret: str, body: bytes, at: str) -> Request:
        signature = "v0=" + mac(secret.encode(), b"v0:", at.encode(), b":", body).hex()
        return Request("POST", URL, {"X-Slack-Request-Timestamp": at, "X-Slack-Signature": signature}, body)

    return Sdk(
        "slack",
        "slack-sdk",
        lambda request, secret: SignatureVerifier(secret).is_valid_request(
            request.body, dict(request.headers)
        ),
        (),
        make,
        header("X-Slack-Signature"),
    )


def standard(provider: str, library: str, prefix: str) -> Sdk:
    if library == "svix":
        from svix.webhooks import Webhook, WebhookVerificationError
    else:
        from standardwebhooks import Webhook, WebhookVerificationError

    written = "v1,whsec_" if provider == "supabase" else "whsec_"

    def key(secret: str) -> bytes:
        text = secret.removeprefix(written)
        return base64.b64decode(text + "==") if text.strip() else b""

    def make(secret: str, body: bytes, at: str) -> Request:
        value = base64.b64encode(mac(key(secret), b"msg_01.", at.encode(), b".", body)).decode()
        names = {"id": "msg_01", "timestamp": at, "signature": f"v1,{value}"}
        return Request("POST", URL, {prefix + name: value for name, value in names.items()}, body)

    def check(request: Request, secret: str) -> bool:
        Webhook(secret.removeprefix("v1,")).verify(request.body, dict(request.headers))
        return True

    two: Mapping[str, Callable[[Sdk], Request]] = {
        "two signatures, the first one good": lambda sdk: sdk.tamper(
            good(sdk), lambda it: f"{it} v1,{'A' * 43}="
        ),
        "two signatures, the second one good": lambda sdk: sdk.tamper(
            good(sdk), lambda it: f"v1,{'A' * 43}= {it}"
        ),
        "an unknown scheme beside": lambda sdk: sdk.tamper(good(sdk), lambda it: f"v9,abc {it}"),
        "an entry without a comma before": lambda sdk: sdk.tamper(good(sdk), lambda it: f"v1 {it}"),
        "an entry that is no base64 before": lambda sdk: sdk.tamper(good(sdk), lambda it: f"v1,A {it}"),
        "the signature without its padding": lambda sdk: sdk.tamper(good(sdk), lambda it: it.rstrip("=")),
    }
    tail = base64.b64encode(b"a key of some thirty-two bytes..").decode()
    return Sdk(
        provider,
        library,
        check,
        (WebhookVerificationError,),
        make,
        header(prefix + "signature"),
        secret=written + tail,
        other=written + tail[::-1].lstrip("="),
        empty=written,
        extra=two,
    )


def plain(
    provider: str,
    library: str,
    name: str,
    prefix: str,
    encode: Callable[[bytes], str],
    check: Any,
    refusals: Any,
) -> Sdk:
    def make(secret: str, body: bytes, _at: str) -> Request:
        headers = {name: prefix + encode(mac(secret.encode(), body)), "Content-Type": "application/json"}
        return Request("POST", URL, headers, body)

    return Sdk(provider, library, check, refusals, make, header(name), timed=False)


def base64_text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def razorpay() -> Sdk:
    import razorpay as library

    def check(request: Request, secret: str) -> Any:
        client = library.Client(auth=("x", "x"))
        return client.utility.verify_webhook_signature(
            request.body.decode(), request.headers.get("X-Razorpay-Signature"), secret
        )

    refusals = (library.errors.SignatureVerificationError,)
    return plain("razorpay", "razorpay", "X-Razorpay-Signature", "", bytes.hex, check, refusals)


def github() -> Sdk:
    from gidgethub import ValidationFailure
    from gidgethub.sansio import validate_event

    def check(request: Request, secret: str) -> bool:
        given = request.headers.get("X-Hub-Signature-256", "")
        validate_event(request.body, signature=given, secret=secret)
        return True

    made = plain(
        "github", "gidgethub", "X-Hub-Signature-256", "sha256=", bytes.hex, check, (ValidationFailure,)
    )
    weak = lambda sdk: sdk.tamper(  # noqa: E731 - one of a table
        good(sdk), lambda _: "sha1=" + mac(sdk.secret.encode(), sdk.body, algorithm="sha1").hex()
    )
    return replace(made, extra={"a SHA-1 signature": weak})


def shopify() -> Sdk:
    from shopify_app import ShopifyApp

    def check(request: Request, secret: str) -> bool:
        app = ShopifyApp(client_id="x", client_secret=secret)
        sent = {"method": "POST", "url": URL, "headers": dict(request.headers), "body": request.body.decode()}
        return app.verify_webhook_req(sent).ok

    return plain("shopify", "shopifyapp", "X-Shopify-Hmac-Sha256", "", base64_text, check, ())


def mailgun() -> Sdk:
    from mailgun.security import SecurityGuard

    def make(secret: str, body: bytes, at: str) -> Request:
        token = hashlib.sha256(body).hexdigest()[:50]
        block = {
            "timestamp": at,
            "token": token,
            "signature": mac(secret.encode(), at.encode(), token.encode()).hex(),
        }
        document = {"signature": block, "event-data": {"id": "01", "event": "opened"}}
        return Request("POST", URL, {"Content-Type": "application/json"}, json.dumps(document).encode())

    def tamper(request: Request, change: Change) -> Request:
        document = json.loads(request.body)
        value = change(document["signature"].pop("signature"))
        if value is not None:
            document["signature"]["signature"] = value
        return replace(request, body=json.dumps(document).encode())

    def check(request: Request, secret: str) -> bool:
        block = json.loads(request.body)["signature"]
        return SecurityGuard.verify_webhook(
            secret, block["token"], block["timestamp"], block.get("signature")
        )

    return Sdk(
        "mailgun",
        "mailgun",
        check,
        (ValueError,),
        make,
        tamper,
        secret="a" * 32,
        other="b" * 32,
        signs_body=False,
    )


ITEM: dict[str, Any] = {
    "pspReference": "01KETTLE",
    "merchantAccountCode": "Kettle",
    "merchantReference": "order-1",
    "amount": {"value": 1130, "currency": "EUR"},
    "eventCode": "AUTHORISATION",
    "success": "true",
    "eventDate": "2026-03-04T05:06:07+01:00",
}
HEX, OTHER_HEX = "0123456789abcdef" * 4, "fedcba9876543210" * 4


def adyen_items() -> Sdk:
    from Adyen.util import is_valid_hmac_notification

    def sign(secret: str, item: dict[str, Any]) -> dict[str, Any]:
        amount = [str(item["amount"]["value"]), item["amount"]["currency"]]
        first = [item["pspReference"], item.get("originalReference", ""), item["merchantAccountCode"]]
        text = ":".join([*first, item["merchantReference"], *amount, item["eventCode"], item["success"]])
        key = bytes.fromhex(secret) if secret.strip() else b""
        return {**item, "additionalData": {"hmacSignature": base64_text(mac(key, text.encode()))}}

    def wrap(*items: dict[str, Any]) -> bytes:
        wrapped = [{"NotificationRequestItem": item} for item in items]
        return json.dumps({"live": "false", "notificationItems": wrapped}).encode()

    def make(secret: str, body: bytes, _at: str) -> Request:
        return Request("POST", URL, {}, wrap(sign(secret, ITEM)) if body == BODY else body)

    def tamper(request: Request, change: Change) -> Request:
        item = json.loads(request.body)["notificationItems"][0]["NotificationRequestItem"]
        value = change(item["additionalData"].pop("hmacSignature"))
        if value is not None:
            item["additionalData"]["hmacSignature"] = value
        return replace(request, body=wrap(item))

    def edited(**fields: Any) -> Callable[[Sdk], Request]:
        return lambda sdk: Request("POST", URL, {}, wrap({**sign(sdk.secret, ITEM), **fields}))

    return Sdk(
        "adyen",
        "Adyen (items)",
        lambda request, secret: is_valid_hmac_notification(json.loads(request.body), secret),
        (ValueError,),
        make,
        tamper,
        secret=HEX,
        other=OTHER_HEX,
        timed=False,
        signs_body=False,
        extra={
            "another amount": edited(amount={"value": 1, "currency": "EUR"}),
            "another reason": edited(reason="something else"),
            "an item without additionalData": edited(additionalData=None),
            "a second item that nobody signed": lambda sdk: Request(
                "POST", URL, {}, wrap(sign(sdk.secret, ITEM), {**sign(sdk.other, ITEM), "pspReference": "02"})
            ),
            "a colon in the merchant's reference": lambda sdk: Request(
                "POST", URL, {}, wrap(sign(sdk.secret, {**ITEM, "merchantReference": "order:1"}))
            ),
            "a colon in the PSP reference": lambda sdk: Request(
                "POST", URL, {}, wrap(sign(sdk.secret, {**ITEM, "pspReference": "01:KETTLE"}))
            ),
        },
    )


def adyen_header() -> Sdk:
    from Adyen.util import is_valid_hmac_payload

    def make(secret: str, body: bytes, _at: str) -> Request:
        key = bytes.fromhex(secret) if secret.strip() else b""
        return Request("POST", URL, {"HmacSignature": base64_text(mac(key, body))}, body)

    return Sdk(
        "adyen",
        "Adyen (header)",
        lambda request, secret: is_valid_hmac_payload(
            request.headers.get("HmacSignature"), secret, request.body
        ),
        (),
        make,
        header("HmacSignature"),
        secret=HEX,
        other=OTHER_HEX,
        timed=False,
    )


def twilio() -> Sdk:
    from twilio.request_validator import RequestValidator

    body = urlencode(
        {"AccountSid": "AC" + "0" * 32, "MessageSid": "SM1", "MessageStatus": "sent", "Body": "ü +%&"}
    ).encode()
    form = {"Content-Type": "application/x-www-form-urlencoded"}

    def fields(body: bytes) -> dict[str, str]:
        return dict(parse_qsl(body.decode(), keep_blank_values=True))

    def at_url(secret: str, body: bytes, signed: str, sent: str) -> Request:
        text = signed + "".join(name + value for name, value in sorted(fields(body).items()))
        signature = base64_text(mac(secret.encode(), text.encode(), algorithm="sha1"))
        return Request("POST", sent, {**form, "X-Twilio-Signature": signature}, body)

    def check(request: Request, secret: str) -> bool:
        given = request.headers.get("X-Twilio-Signature")
        return RequestValidator(secret).validate(request.url, fields(request.body), given)

    def signed_for(signed: str, sent: str) -> Callable[[Sdk], Request]:
        return lambda sdk: at_url(sdk.secret, sdk.body, signed, sent)

    return Sdk(
        "twilio",
        "twilio",
        check,
        (),
        lambda secret, body, _at: at_url(secret, body, URL, URL),
        header("X-Twilio-Signature"),
        secret="0123456789abcdef" * 2,
        other="fedcba9876543210" * 2,
        body=body,
        timed=False,
        signs_body=False,
        extra={
            "a changed field": lambda sdk: replace(good(sdk), body=sdk.body.replace(b"sent", b"read")),
            "a field more": lambda sdk: replace(good(sdk), body=sdk.body + b"&More=x"),
            "signed with the port, called without": signed_for(URL.replace("test/", "test:443/"), URL),
            "signed without the port, called with": signed_for(URL, URL.replace("test/", "test:8443/")),
            "a user in the URL, signed without the port": signed_for(
                "https://me:pw@hooks.example.test/x", "https://me:pw@hooks.example.test:8443/x"
            ),
            "IPv6, signed without the port": signed_for("https://[::1]/x", "https://[::1]:8443/x"),
            "a quote and a blank in the query": signed_for(
                f"{URL}?a=it's&b=a%20b&c=", f"{URL}?a=it's&b=a%20b&c="
            ),
            "a port that is none": signed_for(
                "https://hooks.example.test:port/x", "https://hooks.example.test:port/x"
            ),
        },
    )


SDKS: Mapping[str, Callable[[], Sdk]] = {
    "stripe": stripe,
    "github": github,
    "shopify": shopify,
    "slack": slack,
    "razorpay": razorpay,
    "paddle": paddle,
    "clerk": lambda: standard("clerk", "svix", "svix-"),
    "svix": lambda: standard("svix", "svix", "svix-"),
    "standard-webhooks": lambda: standard("standard-webhooks", "standardwebhooks", "webhook-"),
    "supabase": lambda: standard("supabase", "standardwebhooks", "webhook-"),
    "twilio": twilio,
    "mailgun": mailgun,
    "adyen-items": adyen_items,
    "adyen-header": adyen_header,
}


def theirs(sdk: Sdk, request: Request, secret: str) -> str:
    """Their verdict. A refusal in another way than the library documents is a crash: it becomes an error 500."""
    try:
        return ACCEPTS if sdk.check(request, secret) else REFUSES
    except sdk.refusals:
        return REFUSES
    except Exception:  # noqa: BLE001 - that is what is looked for
        return CRASHES


def ours(sdk: Sdk, request: Request, secret: str) -> str:
    try:
        providers.get(sdk.provider).signature.verify(request, [secret], now())
    except SignatureError:
        return REFUSES
    return ACCEPTS


def found(name: str) -> dict[str, tuple[str, str]]:
    sdk = SDKS[name]()
    verdicts = {case: (theirs(sdk, *asked), ours(sdk, *asked)) for case, asked in cases(sdk).items()}
    return {case: pair for case, pair in verdicts.items() if pair[0] != pair[1]}
