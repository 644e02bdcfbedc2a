"""Commands for users and their keys."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memory_es.cli.door import open_platform
from memory_es.cli.output import JsonFlag, print_json, table
from memory_es.errors import InvalidInput

if TYPE_CHECKING:
    from memory_es.security import KeyInfo

app = typer.Typer(no_args_is_help=True, help="Users and their keys.")
UserId = Annotated[str, typer.Argument(help="The user's id.")]
Expires = Annotated[
    str | None,
    typer.Option(help="How long the key is valid, such as 12h or 90d (MEMORY_ES_KEY_EXPIRY)."),
]
Purpose = Annotated[str, typer.Option(help="What the key is for; shown by `users list`.")]
Show = Annotated[
    bool,
    typer.Option(
        "--show", help="Print the credentials once, for an agent elsewhere; do not keep them."
    ),
]


def _issuer() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return "unknown"


@app.command("add")
def add(
    user_ids: Annotated[list[str], typer.Argument(help="One or more user ids.")],
    read_only: Annotated[
        bool, typer.Option("--read-only", help="The key may recall, not remember.")
    ] = False,
    expires: Expires = None,
    purpose: Purpose = "default",
    show: Show = False,
    json_: JsonFlag = False,
) -> None:
    """Make users known, each with a key kept in the state folder. Those that have one keep it.

    With --show another key is made for an agent elsewhere, which needs nothing but that file:

    memory-es users add sarah --show --purpose phone > key.json

    MEMORY_ES_CREDENTIALS=key.json memory-es recall "what may I not eat?"
    """
    if show and len(user_ids) > 1:
        raise InvalidInput("--show", "prints one user's credentials; name one user")
    with open_platform() as platform:
        if show:
            made = platform.mint(
                user_ids[0],
                issued_by=_issuer(),
                access="read" if read_only else "write",
                expiration=expires,
                purpose=purpose,
            )
            print_json(made.revealed())
            return
        added = [
            (
                user_id,
                *platform.add_user(
                    user_id,
                    issued_by=_issuer(),
                    access="read" if read_only else "write",
                    expiration=expires,
                    purpose=purpose,
                ),
            )
            for user_id in user_ids
        ]
    if json_:
        print_json(
            [
                {
                    "user": user_id,
                    "key_id": credentials.key_id,
                    "new": new,
                    "expires_at": credentials.expires_at,
                }
                for user_id, credentials, new in added
            ]
        )
        return
    for user_id, credentials, new in added:
        verb = "has a new key" if new else "already has a working key"
        end = credentials.expires_at
        until = f", valid until {end:%Y-%m-%d}" if end else ""
        typer.echo(f"{user_id} {verb} ({credentials.key_id}{until}).")


@app.command("list")
def list_(
    user_id: Annotated[str | None, typer.Argument(help="Only this user's keys.")] = None,
    ended: Annotated[
        bool, typer.Option("--ended", help="Also expired and revoked keys, while known.")
    ] = False,
    json_: JsonFlag = False,
) -> None:
    """List keys: whose, for what, when made (the last rotation), until when. Never a secret."""
    with open_platform() as platform:
        keys = [key for key in platform.list_keys(user_id) if ended or key.state == "live"]
    if json_:
        print_json([key.model_dump(mode="json") for key in keys])
        return
    if not keys:
        typer.echo("There are no keys. Make one with `memory-es users add USER`.")
        return
    columns = ("user", "key", "access", "purpose", "issued by", "last rotation", "ends", "state")
    table("keys", columns, [_row(key) for key in keys], left=len(columns))


def _row(key: KeyInfo) -> tuple[Any, ...]:
    ends = f"{key.expires_at:%Y-%m-%d %H:%M}" if key.expires_at else "never"
    made = f"{key.created_at:%Y-%m-%d %H:%M}"
    return (
        key.user_id,
        key.key_id,
        key.access,
        key.purpose,
        key.issued_by,
        made,
        ends,
        key.state,
    )


@app.command("rotate")
def rotate(
    user_id: UserId,
    overlap: Annotated[
        str, typer.Option(help="How long the old keys stay valid: 30m, 12h, or 0 for not at all.")
    ] = "1h",
    expires: Expires = None,
    purpose: Purpose = "default",
    show: Show = False,
    json_: JsonFlag = False,
) -> None:
    """Make a new key in place of the user's live ones of the same purpose.

    memory-es users rotate sarah --overlap 12h
    """
    with open_platform() as platform:
        made, before = platform.rotate_user(
            user_id,
            overlap=overlap,
            issued_by=_issuer(),
            expiration=expires,
            purpose=purpose,
            keep=not show,
        )
    if show:
        print_json(made.revealed())
        return
    replaced = [key.key_id for key in before]
    if json_:
        print_json({"user": user_id, "key_id": made.key_id, "replaces": replaced})
        return
    typer.echo(f"{user_id} has a new key ({made.key_id}).")
    when = "now" if overlap in ("0", "0m") else f"within {overlap}"
    typer.echo(f"The old ones end {when}: {', '.join(replaced)}.")


@app.command("revoke")
def revoke(
    user_id: Annotated[
        str | None, typer.Argument(help="The user's id; not needed with --key.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="Only this key, by its id; the user stays.")
    ] = None,
    json_: JsonFlag = False,
) -> None:
    """End a user's keys, at once: whoever holds one is refused at the next call.

    The memories stay. `users add` lets the user in again. A key that `doctor --security` complains
    of is ended by its id alone: memory-es users revoke --key ID
    """
    with open_platform() as platform:
        ended = platform.revoke_user(user_id, key)
    if json_:
        print_json({"user": user_id, "ended": ended})
        return
    typer.echo(f"Ended: {', '.join(ended)}." if ended else f"{user_id} had no live key.")


@app.command("whoami")
def whoami(
    user_id: Annotated[
        str | None,
        typer.Option("--user", "-u", envvar="MEMORY_ES_USER", help="Whose key; none: the given."),
    ] = None,
    json_: JsonFlag = False,
) -> None:
    """Ask the cluster, with the key in use, whose key it is and until when it is valid."""
    with open_platform() as platform:
        facts = platform.memory_of(user_id).whoami()
    if json_:
        print_json(facts)
        return
    table("whoami", ("what", "value"), list(facts.items()), left=2)
