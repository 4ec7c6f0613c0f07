"""People's data: erase, reencrypt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import click

from ..inbox.erasing import Erasing
from ..provider import ObjectRef
from .asking import endpoint_name, endpoint_option
from .output import Answer, command, sentences, state, waiting

__all__ = ["erase", "reencrypt"]

SHORTEST = 4
"""Characters; a shorter text is in nearly everything."""


@command()
@click.option("--object", "about", metavar="KIND:ID", help="The object, and whatever holds its id.")
@click.option(
    "--match",
    "texts",
    multiple=True,
    metavar="TEXT",
    help="Whatever holds this text, in any case. May be given again.",
)
@endpoint_option
@click.option("--dry-run", is_flag=True, help="Only say how much it would be.")
def erase(about: str | None, texts: Sequence[str], endpoint: str | None, *, dry_run: bool) -> Answer:
    """Take one person's data out of bodies, objects, errors, effects, refused deliveries, evidence, and this host's spool.

    Keys stay, so that a redelivery is still a duplicate. Erase at the provider first: what is fetched again is here again.
    """
    inbox = state()
    if about is None and not texts:
        raise click.UsageError("give --object or --match")
    kind, _, id_ = (about or "").partition(":")
    if about is not None and not (kind and id_):
        raise click.UsageError(f"--object {about!r} is not KIND:ID, such as customer:cus_1")
    for text in texts:
        if len(text.strip()) < SHORTEST:
            raise click.UsageError(f"--match {text!r} is too short: it would be in nearly everything")
    erasing = Erasing(
        inbox.inbox,
        lambda name: name in inbox.endpoints and inbox.endpoints[name].fetches,
        ObjectRef(kind, id_) if about is not None else None,
        tuple(texts),
        endpoint_name(inbox, endpoint),
        dry_run,
    )
    with waiting("Erasing"):
        done = erasing.run()
        if inbox.spool is not None:
            done.rows["spool"] = inbox.spool.erase(erasing.is_theirs, dry=dry_run)
    verb = "would be erased" if dry_run else "erased"
    lines = [f"{number} {name} {verb}." for name, number in done.rows.items() if number] or [
        "Nothing holds it."
    ]
    if done.never_applied:
        lines.append(
            f"{done.never_applied} events were not applied yet and never will be: nothing can be fetched for them."
        )
    if done.in_keys:
        lines.append(
            f"{done.in_keys} events hold the text in a key, which stays: redeliveries are recognised by it."
        )
    if done.sealed:
        lines.append(
            f"{done.sealed} bodies could not be looked into: their key is not among WEBHOOKS_BODY_KEYS."
        )
    return Answer({"dry_run": dry_run, **asdict(done)}, sentences(lines), int(done.sealed > 0))


@command()
@click.option("--plain", is_flag=True, help="Write bodies as they came, before encryption is switched off.")
def reencrypt(*, plain: bool) -> Answer:
    """Encrypt all kept bodies with the first of WEBHOOKS_BODY_KEYS; the other keys can go when it is done."""
    inbox = state().inbox
    sealer = inbox.sealer
    if not sealer.seals:
        raise click.ClickException("WEBHOOKS_BODY_KEYS is not set: there is no key to encrypt with")
    current = None if plain else sealer.current

    def seal(stored: bytes, sealed: str | None) -> tuple[bytes, str | None]:
        body = sealer.open(stored, sealed)
        return (body, None) if plain else sealer.seal(body)

    with waiting("Encrypting"):
        number = inbox.reseal(seal, current)
    how = "written as they came" if plain else f"encrypted with the key {current}"
    return Answer({"bodies": number, "key": current}, sentences([f"{number} bodies {how}."]))
