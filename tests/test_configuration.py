"""The configuration: one dict, every mistake in it named at once, the environment above it."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from tests.apps import GITHUB, STRIPE, build, deliver, rows, signed
from webhooks import ConfigError, Webhooks, endpoints, providers
from webhooks.endpoints import MAX_BODY, Endpoint
from webhooks.errors import SignatureError
from webhooks.extension import celery_settings, state
from workers import create_app


def read(**config: Any) -> Endpoint:
    return endpoints.read({"stripe": {**STRIPE, **config}})["stripe"]


def mistakes(config: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        endpoints.read(config)
    return str(caught.value).splitlines()


def mistake(config: Any) -> str:
    (line,) = mistakes(config)
    return line


def test_every_mistake_is_named_at_once_and_no_secret_with_it() -> None:
    config = {
        "stripe": {
            "secrets": ["", "sk_live_MARKER", " whsec_0123456789\n"],
            "apply": "thread",
            "colour": "red",
        },
        "github": {"secrets": "", "settings": {"tokn": "MARKER"}, "tolerance": 60, "max_body": 3},
        "gitlab": {"provider": "gitlabb", "secrets": ["x"]},
        "bad name": {"secrets": ["x"]},
        "text": "whsec_MARKER",
        "none": {"provider": "stripe"},
    }
    with pytest.warns(UserWarning, match="white space"):
        found = "\n".join(mistakes(config))
    for expected in (
        "WEBHOOKS['stripe'].secrets: [0] is blank; anybody could sign with it",
        "WEBHOOKS['stripe'].apply: Must be one of: worker, request.",
        "WEBHOOKS['stripe'].colour: is not known; there are ",
        "WEBHOOKS['stripe'].settings.api_key is missing",
        "WEBHOOKS['github'].secrets: [0] is blank",
        "WEBHOOKS['github'].settings: github has no setting 'tokn'; it has token, ",
        "WEBHOOKS['github'].settings.token is missing",
        "WEBHOOKS['github'].tolerance: github signs no time",
        "WEBHOOKS['github'].max_body: Must be greater than or equal to 1024.",
        "WEBHOOKS['gitlab'].provider: there is no provider 'gitlabb'; there are ",
        "WEBHOOKS['bad name']: a name is letters, digits",
        "WEBHOOKS['text'] must be a dict with at least `secrets`",
        "WEBHOOKS['none'].secrets: is missing; give the signing secret that the provider shows",
    ):
        assert expected in found
    assert "MARKER" not in found


SECRETS: dict[str, tuple[str, Any, str]] = {
    "A82: missing": ("stripe", ..., "secrets: is missing; give the signing secret"),
    "A82: none": ("stripe", None, "secrets: Field may not be null."),
    "A82: empty list": ("stripe", [], "secrets: is empty; give at least one secret"),
    "A82: empty": ("stripe", "", "secrets: [0] is blank"),
    "A82: blanks": ("stripe", [" \t\n"], "secrets: [0] is blank"),
    "A82: one of two": ("stripe", ["whsec_0123456789", ""], "secrets: [1] is blank"),
    "A82: none in the list": ("stripe", [None], "secrets: [0] Field may not be null."),
    "an API key": (
        "stripe",
        ["sk_test_0123456789"],
        "secrets[0]: a Stripe signing secret begins with whsec_",
    ),
    "an endpoint's id": (
        "stripe",
        ["we_0123456789"],
        "secrets[0]: a Stripe signing secret begins with whsec_",
    ),
    "A09: quotes around": (
        "stripe",
        ["'whsec_0123456789'"],
        "secrets[0]: a Stripe signing secret begins with",
    ),
    "only the prefix": ("stripe", ["whsec_"], "secrets[0]: a Stripe signing secret is longer"),
    "the second one": (
        "stripe",
        ["whsec_0123456789", "x" * 20],
        "secrets[1]: a Stripe signing secret begins",
    ),
    "too short": ("github", ["abc"], "secrets[0]: use a secret of at least 8 characters"),
    "short but for blanks": ("github", ["abc       "], "secrets[0]: use a secret of at least 8 characters"),
    "a dict": ("github", {"a": 1}, "secrets: [0] a secret from a file is written"),
    "a fraction": ("github", 1.5, "secrets: Not a valid list."),
    "true": ("github", [True], "secrets: [0] Not a valid string."),
}


@pytest.mark.parametrize(("provider", "secrets", "expected"), SECRETS.values(), ids=SECRETS)
@pytest.mark.filterwarnings("ignore:.*white space")
def test_a_secret_that_cannot_be_right_stops_the_start(provider: str, secrets: Any, expected: str) -> None:
    given = {**{"stripe": STRIPE, "github": GITHUB}[provider], "secrets": secrets}
    if secrets is ...:
        del given["secrets"]
    assert mistake({"here": given}).startswith(f"WEBHOOKS['here'].{expected}")


def test_a_single_secret_needs_no_list() -> None:
    assert read(secrets="whsec_0123456789").secrets == ("whsec_0123456789",)


def test_white_space_around_secrets_is_removed_with_a_warning_each() -> None:
    """A13"""
    with pytest.warns(
        UserWarning, match=r"WEBHOOKS\['stripe'\]\.secrets: white space around a secret was removed"
    ) as warned:
        found = read(secrets=["whsec_0123456789\n", "whsec_9876543210", "\t whsec_5555555555 "])
    assert found.secrets == ("whsec_0123456789", "whsec_9876543210", "whsec_5555555555")
    assert len(warned) == 2


OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "apply": ({"apply": "later"}, "apply: Must be one of: worker, request."),
    "fetch": ({"fetch": "perhaps"}, "fetch: Not a valid boolean."),
    "mirror": ({"mirror": "some"}, "mirror: Must be one of: auto, all, handled, none."),
    "base URL": ({"api_base_url": "api.stripe.com"}, "api_base_url: Not a valid URL."),
    "base URL of files": ({"api_base_url": "file:///etc"}, "api_base_url: Not a valid URL."),
    "public URL": ({"public_url": "/hooks"}, "public_url: Not a valid URL."),
    "max_body": ({"max_body": "big"}, "max_body: Not a valid integer."),
    "attempts": ({"max_attempts": 0}, "max_attempts: Must be greater than or equal to 1"),
    "tolerance": ({"tolerance": 0}, "tolerance: Must be greater than or equal to"),
    "tolerance of text": ({"tolerance": "long"}, "tolerance: Not a valid period of time."),
    "late": ({"late": "maybe"}, "late: Must be one of: run, skip, ask."),
    "silence": ({"max_silence": 5}, "max_silence: Must be greater than or equal to 0:01:00."),
    "rate": ({"api_rate": 0}, "api_rate: Must be greater than 0."),
    "aliases": ({"aliases": "old"}, "aliases: Not a valid list."),
    "alias with a slash": ({"aliases": ["a/b"]}, "aliases: [0] a name is letters, digits"),
    "unknown": ({"secret": "x"}, "secret: is not known; there are "),
    "unknown setting": (
        {"settings": {"token": "x"}},
        "settings: stripe has no setting 'token'; it has api_key, ",
    ),
    "a setting that is a dict": ({"endpoint_id": {}}, "settings.endpoint_id must be text or a function"),
    "no settings": ({"settings": []}, "settings: Not a valid mapping type."),
    "no key": (
        {"api_key": ""},
        "settings.api_key is missing; without it the current object cannot be fetched",
    ),
    "a blank key": (
        {"api_key": " \n"},
        "settings.api_key is missing; without it the current object cannot be",
    ),
}


@pytest.mark.parametrize(("given", "expected"), OPTIONS.values(), ids=OPTIONS)
def test_each_wrong_option_is_named_with_what_would_be_right(given: dict[str, Any], expected: str) -> None:
    assert mistake({"stripe": {**STRIPE, **given}}).startswith(f"WEBHOOKS['stripe'].{expected}")


SHAPES: dict[str, tuple[Any, str]] = {
    "a list": ([], "WEBHOOKS must be a dict"),
    "a text": ("stripe", "WEBHOOKS must be a dict"),
    "none": (None, "WEBHOOKS must be a dict"),
    "defaults that are a text": ({"defaults": "x", "stripe": STRIPE}, "WEBHOOKS['defaults'] must be a dict"),
    "a number for a name": ({5: STRIPE}, "WEBHOOKS[5]: a name is letters, digits"),
    "a name with a slash": ({"a/b": STRIPE}, "WEBHOOKS['a/b']: a name is letters, digits"),
    "an empty name": ({"": STRIPE}, "WEBHOOKS['']: a name is letters, digits"),
    "a long name": ({"a" * 64: STRIPE}, f"WEBHOOKS['{'a' * 64}']: a name is letters, digits"),
    "a name of other letters": ({"ключ": STRIPE}, "WEBHOOKS['ключ']: a name is letters, digits"),
    "a provider that is a list": (
        {"x": {**STRIPE, "provider": []}},
        "WEBHOOKS['x'].provider: there is no provider",
    ),
}


@pytest.mark.parametrize(("config", "expected"), SHAPES.values(), ids=SHAPES)
def test_a_wrong_shape_is_named(config: Any, expected: str) -> None:
    assert mistakes(config)[0].startswith(expected)


def test_an_endpoint_is_of_the_provider_that_it_is_named_after() -> None:
    found = endpoints.read({"stripe": {k: v for k, v in STRIPE.items() if k != "provider"}, "shop": STRIPE})
    assert [endpoint.provider.name for endpoint in found.values()] == ["stripe", "stripe"]


def test_without_a_key_the_current_object_may_be_given_up_on_purpose() -> None:
    found = endpoints.read({"stripe": {"secrets": ["whsec_0123456789"], "fetch": False}})["stripe"]
    assert (found.fetches, found.setting("api_key")) == (False, "")


def test_what_is_not_said_has_its_default() -> None:
    stripe, github = endpoints.read({"stripe": STRIPE, "github": GITHUB}).values()
    assert (stripe.apply, stripe.fetch, stripe.mirror, stripe.late) == ("worker", True, "auto", "run")
    assert (stripe.public_url, stripe.max_attempts, stripe.aliases) == (None, 15, ())
    assert stripe.max_body == MAX_BODY
    assert github.max_body == 25 * 1024 * 1024
    assert stripe.setting("api_version") == "2026-10-28.endive"
    assert stripe.setting("endpoint_id") == ""


def test_defaults_are_for_all_endpoints_and_are_none_themselves() -> None:
    config = {
        "defaults": {"apply": "request", "max_body": 4096},
        "stripe": STRIPE,
        "github": {**GITHUB, "max_body": 8192},
    }
    found = endpoints.read(config)
    assert list(found) == ["stripe", "github"]
    assert found.at("defaults") is None
    assert [(e.apply, e.max_body) for e in found.values()] == [("request", 4096), ("request", 8192)]


def test_a_setting_may_be_a_number_a_list_or_a_function() -> None:
    """What an environment variable holds may look like a number."""
    tokens = iter(["one", "two\n", None])
    config = {**GITHUB, "hook_id": 292430182, "repositories": ["a/b", "c/d"], "token": lambda: next(tokens)}
    found = endpoints.read({"github": config})["github"]
    assert found.setting("hook_id") == "292430182"
    assert found.setting("repositories") == "a/b,c/d"
    assert [found.setting("token") for _ in range(3)] == ["one", "two", ""]


def test_a_setting_may_stand_beside_the_options_or_below_settings() -> None:
    beside = read(api_key="sk_live_1")
    below = endpoints.read(
        {"stripe": {"secrets": ["whsec_0123456789"], "settings": {"api_key": "sk_live_1"}}}
    )["stripe"]
    assert beside.setting("api_key") == below.setting("api_key") == "sk_live_1"


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("sk_live_1", True),
        ("rk_live_1", True),
        ("sk_test_1", False),
        ("rk_test_1", False),
        ("sk_1", None),
        (lambda: "sk_live_1", None),
    ],
)
def test_the_key_says_which_mode_is_expected(key: Any, expected: bool | None) -> None:
    """A51"""
    assert read(api_key=key).livemode is expected


def test_the_mode_can_be_said() -> None:
    assert read(api_key="sk_test_1", livemode=True).livemode is True


@pytest.mark.parametrize("tolerance", [600, "600", timedelta(minutes=10)])
def test_the_tolerance_is_in_seconds_and_for_this_endpoint_alone(tolerance: Any) -> None:
    """A17"""
    found = endpoints.read({"wide": {**STRIPE, "tolerance": tolerance}, "usual": STRIPE})
    now = 1_800_000_000
    request = found["wide"].provider.signature.sign(
        signed(providers.get("stripe"), "whsec_x", "a.b"),
        STRIPE["secrets"][0],
        now - 599,
    )
    assert found["wide"].provider.signature.verify(request, found["wide"].secrets, now)
    with pytest.raises(SignatureError, match="clock"):
        found["usual"].provider.signature.verify(request, found["usual"].secrets, now)
    with pytest.raises(SignatureError, match="clock"):
        found["wide"].provider.signature.verify(request, found["wide"].secrets, now + 2)


def test_an_alias_may_be_nobody_elses_name_or_alias() -> None:
    config = {
        "a": {**STRIPE, "aliases": ["b", "old"]},
        "b": {**STRIPE, "aliases": ["old", "a"]},
        "c": {**STRIPE, "aliases": ["new", "new"]},
    }
    assert mistakes(config) == [
        "WEBHOOKS['a'].aliases: 'b' is another endpoint's name or alias",
        "WEBHOOKS['b'].aliases: 'old' is another endpoint's name or alias",
        "WEBHOOKS['b'].aliases: 'a' is another endpoint's name or alias",
        "WEBHOOKS['c'].aliases: 'new' is another endpoint's name or alias",
    ]


def test_no_secret_is_in_what_is_printed() -> None:
    found = read()
    for text in (repr(found), str(found), f"{found}"):
        assert STRIPE["secrets"][0] not in text
        assert STRIPE["api_key"] not in text


# -- the environment


def start(monkeypatch: pytest.MonkeyPatch, config: Any, **environment: str) -> Flask:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    app = Flask("host")
    app.config.from_mapping(
        WEBHOOKS=config, SQLALCHEMY_DATABASE_URI="sqlite://", CELERY={"broker_url": "memory://"}
    )
    SQLAlchemy(app)
    Webhooks(app)
    return app


def test_the_environment_alone_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    app = start(
        monkeypatch,
        {},
        FLASK_WEBHOOKS__stripe__secrets='["whsec_0123456789", "whsec_9876543210"]',
        FLASK_WEBHOOKS__stripe__api_key="sk_live_1",
        FLASK_WEBHOOKS__stripe__tolerance="600",
        FLASK_WEBHOOKS__stripe__fetch="false",
        FLASK_WEBHOOKS__github__secrets="a github secret",
        FLASK_WEBHOOKS__github__settings__token="ghp_1",
        FLASK_WEBHOOKS__github__hook_id="292430182",
        FLASK_WEBHOOKS__github__repositories='["a/b", "c/d"]',
        FLASK_WEBHOOKS__defaults__apply="request",
    )
    stripe, github = state(app).endpoints["stripe"], state(app).endpoints["github"]
    assert stripe.secrets == ("whsec_0123456789", "whsec_9876543210")
    assert (stripe.setting("api_key"), stripe.fetch, stripe.livemode) == ("sk_live_1", False, True)
    assert github.secrets == ("a github secret",)
    assert (github.setting("token"), github.setting("hook_id")) == ("ghp_1", "292430182")
    assert github.setting("repositories") == "a/b,c/d"
    assert {stripe.apply, github.apply} == {"request"}


def test_the_environment_is_above_the_dict_at_every_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"stripe": {**STRIPE, "max_body": 4096, "settings": {"endpoint_id": "we_1"}}}
    app = start(
        monkeypatch,
        config,
        FLASK_WEBHOOKS__stripe__secrets='["whsec_of_the_environment"]',
        FLASK_WEBHOOKS__stripe__settings__api_version="2025-01-01",
    )
    found = state(app).endpoints["stripe"]
    assert found.secrets == ("whsec_of_the_environment",)
    assert found.max_body == 4096
    assert (found.setting("endpoint_id"), found.setting("api_version")) == ("we_1", "2025-01-01")
    assert config["stripe"]["secrets"] == STRIPE["secrets"]


def test_the_whole_configuration_may_be_one_json_text(monkeypatch: pytest.MonkeyPatch) -> None:
    app = start(monkeypatch, {}, FLASK_WEBHOOKS='{"github": {"secrets": ["a github secret"], "token": "x"}}')
    assert list(state(app).endpoints) == ["github"]


@pytest.mark.parametrize("value", ["{'github': {}}", '{"github": ', "github", "[]", "5"])
def test_a_configuration_that_is_no_json_is_not_passed_over(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    with pytest.raises(ConfigError, match="FLASK_WEBHOOKS is not a JSON object") as caught:
        start(monkeypatch, {"stripe": STRIPE}, FLASK_WEBHOOKS=value)
    assert value not in str(caught.value)


def test_a_secret_of_digits_is_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment's JSON makes a number of it."""
    app = start(
        monkeypatch,
        {},
        FLASK_WEBHOOKS__github__secrets="1234567890",
        FLASK_WEBHOOKS__github__token="x",
        FLASK_WEBHOOKS__other__provider="github",
        FLASK_WEBHOOKS__other__secrets="[1234567890, 123456789012345678901234567890]",
        FLASK_WEBHOOKS__other__token="5",
    )
    assert state(app).endpoints["github"].secrets == ("1234567890",)
    assert state(app).endpoints["other"].secrets == ("1234567890", "123456789012345678901234567890")
    assert state(app).endpoints["other"].setting("token") == "5"


def test_mistakes_in_the_environment_stop_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError) as caught:
        start(
            monkeypatch,
            {"stripe": STRIPE},
            FLASK_WEBHOOKS__stripe__secrets="",
            FLASK_WEBHOOKS__stripe__aply="request",
            FLASK_WEBHOOKS__gitlab__provider="gitlabb",
        )
    assert "WEBHOOKS['stripe'].secrets: [0] is blank" in str(caught.value)
    assert "WEBHOOKS['stripe'].aply: is not known" in str(caught.value)
    assert "WEBHOOKS['gitlab'].provider" in str(caught.value)


# -- the order of things


def test_the_database_comes_first() -> None:
    app = Flask("host")
    with pytest.raises(ConfigError, match=r"call db\.init_app\(app\) before webhooks\.init_app\(app\)"):
        Webhooks(app)


def test_one_extension_serves_two_apps_without_mixing_them(tmp_path: Any) -> None:
    webhooks = Webhooks()
    with (
        build(
            f"sqlite:///{tmp_path / 'a'}",
            {"stripe": {**STRIPE, "secrets": ["whsec_of_app_a"]}},
            webhooks=webhooks,
        ) as a,
        build(
            f"sqlite:///{tmp_path / 'b'}",
            {"stripe": {**STRIPE, "secrets": ["whsec_of_app_b"]}},
            webhooks=webhooks,
        ) as b,
    ):
        assert deliver(a, "stripe", "a.b", id="evt_a").status_code == 200
        assert deliver(b, "stripe", "a.b", id="evt_b").status_code == 200
        assert deliver(a, "stripe", "a.b", secret="whsec_of_app_b").status_code == 401
        assert [[row.dedup_key for row in rows(app, "events")] for app in (a, b)] == [["evt_a"], ["evt_b"]]


def test_a_handler_for_nothing_is_named_at_the_first_delivery(sqlite_url: str) -> None:
    webhooks = Webhooks()
    webhooks.on("strpe", "customer.updated")(lambda event, customer: None)
    with (
        build(sqlite_url, {"stripe": STRIPE}, webhooks=webhooks) as app,
        pytest.raises(ConfigError, match="there is no endpoint or provider 'strpe'"),
    ):
        deliver(app, "stripe", "customer.updated")


def test_a_flow_with_two_triggers_names_both_places() -> None:
    webhooks = Webhooks()
    webhooks.on("stripe", "invoice.paid", flow="fulfil")(lambda event, invoice: None)
    with pytest.raises(
        ConfigError, match=r"the flow 'fulfil' has two triggers: invoice\.paid at .*test_configuration"
    ):
        webhooks.on("stripe", "charge.succeeded", flow="fulfil", name="other")(lambda event, charge: None)


def test_a_registration_for_no_kind_or_no_type_is_a_mistake() -> None:
    webhooks = Webhooks()
    with pytest.raises(ConfigError, match="needs at least one kind"):
        webhooks.sync("stripe")
    with pytest.raises(ConfigError, match="needs at least one event type"):
        webhooks.on("stripe")


@pytest.mark.parametrize("name", ["WEBHOOKS_LEASE", "WEBHOOKS_EFFECT_LEASE"])
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("abc", "must be a number of seconds, not 'abc'"),
        (None, "not None"),
        (-5, "more than 0 seconds, not -5"),
    ],
)
def test_a_time_that_is_none_is_named(name: str, given: Any, expected: str) -> None:
    app = Flask(__name__)
    app.config.update({"SQLALCHEMY_DATABASE_URI": "sqlite://", name: given})
    SQLAlchemy(app)
    with pytest.raises(ConfigError, match=f"{name} .*{expected}"):
        Webhooks(app)


def test_settings_of_celery_that_are_no_dict_are_named() -> None:
    app = Flask(__name__)
    app.config["CELERY"] = "redis://127.0.0.1"
    with pytest.raises(ConfigError, match="CELERY must be a dict"):
        celery_settings(app)


@pytest.mark.parametrize("given", [5, True, None, ["mailto://a@example.com", 5], [""], {"mailto": 1}])
def test_alerts_that_are_no_addresses_are_named_at_start_up(
    given: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    monkeypatch.setenv("FLASK_INSTANCE_PATH", str(tmp_path))
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.setenv("FLASK_WEBHOOKS_ALERTS", json.dumps(given))
    with pytest.raises(ConfigError, match="WEBHOOKS_ALERTS is a list of Apprise addresses") as raised:
        create_app()
    assert 'example.com"]' in str(raised.value)
    assert "a@example" not in str(raised.value)


@pytest.mark.parametrize("url", ["nonsense", "mysql://u:hidden@db/x", "://", "postgresql"])
def test_a_database_url_that_is_none_is_said_without_a_traceback_or_a_password(
    url: str, tmp_path: Any
) -> None:
    environment = {"DATABASE_URL": url, "FLASK_INSTANCE_PATH": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-m", "flask", "--app", "wsgi", "webhooks", "status"],
        cwd=Path(__file__).parent.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "DATABASE_URL must be the URL of a PostgreSQL or SQLite database" in done.stderr
    assert "Traceback" not in done.stderr
    assert "hidden" not in done.stderr


@pytest.mark.parametrize("hops", ["abc", -1, 1.5])
def test_a_number_of_proxies_that_is_none_is_named(hops: Any, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("FLASK_INSTANCE_PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="FLASK_PROXY_HOPS must be a number of proxies"):
        create_app({"PROXY_HOPS": hops})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("postgres://a:b@db/x", "postgresql+psycopg://a:b@db/x?connect_timeout=4"),
        (
            "postgresql://a:b@db/x?sslmode=require",
            "postgresql+psycopg://a:b@db/x?sslmode=require&connect_timeout=4",
        ),
        ("postgresql+psycopg://db/x?connect_timeout=9", "postgresql+psycopg://db/x?connect_timeout=9"),
        ("sqlite:///x.db", "sqlite:///x.db"),
    ],
)
def test_a_database_is_not_waited_for_longer_than_a_provider_waits(
    given: str, expected: str, tmp_path: Any, monkeypatch: Any
) -> None:
    monkeypatch.setenv("FLASK_INSTANCE_PATH", str(tmp_path))
    monkeypatch.setenv("DATABASE_URL", given)
    monkeypatch.delenv("FLASK_SQLALCHEMY_DATABASE_URI", raising=False)
    assert create_app().config["SQLALCHEMY_DATABASE_URI"] == expected
