"""`ebbtide webhooks`: have a project's cluster events sent to a URL."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ebbtide.cli import output
from ebbtide.cli.output import Column
from ebbtide.cli.session import Session, command

Json = dict[str, Any]

app = typer.Typer(no_args_is_help=True, help="Webhooks: cluster events sent to a URL, signed, until taken.")

WebhookId = Annotated[str, typer.Argument(metavar="WEBHOOK_ID", help="The webhook's id.")]


def _reasons(webhook: Json) -> str:
    return "all" if webhook["reasons"] is None else ", ".join(webhook["reasons"])


def _state(delivery: Json) -> str:
    if delivery["delivered_at"]:
        return "delivered"
    return "waiting" if delivery["next_try_at"] or not delivery["tries"] else "given up"


_WEBHOOKS = (
    Column("id", "id"),
    Column("url", "url"),
    Column("events", _reasons),
    Column("created", lambda webhook: output.clock(webhook["created_at"])),
)
_DELIVERIES = (
    Column("no", "number", right=True),
    Column("event", "reason"),
    Column("state", _state),
    Column("tries", "tries", right=True),
    Column("last answer", "last_answer"),
    Column("next try", lambda delivery: output.clock(delivery["next_try_at"]), rare=True),
    Column("delivered", lambda delivery: output.clock(delivery["delivered_at"]), wide=True),
    Column("cluster", "cluster_id", wide=True),
    Column("id", "id"),
)


@command(app, "list")
def list_webhooks(session: Session) -> None:
    """List the project's webhooks, without their secrets."""
    session.rows(
        session.client.webhooks(), _WEBHOOKS, empty="no webhooks; `ebbtide webhooks create URL` makes one"
    )


@command(app, "create")
def create_webhook(
    session: Session,
    target: Annotated[str, typer.Argument(metavar="URL", help="Where events are sent.")],
    reason: Annotated[
        list[str] | None,
        typer.Option("--reason", metavar="REASON", help="Only these events; may be repeated. Else all."),
    ] = None,
) -> None:
    """Subscribe a URL. Its secret, which signs every request, is shown this once."""
    session.result(session.client.create_webhook(target, reason or None), _show)


def _show(webhook: Json) -> None:
    output.print_facts(
        [
            ("secret", webhook["secret"]),
            ("id", webhook["id"]),
            ("url", webhook["url"]),
            ("events", _reasons(webhook)),
        ]
    )
    output.note("keep the secret now: it is not shown again")


@command(app, "delete")
def delete_webhook(session: Session, webhook_id: WebhookId) -> None:
    """End a subscription; what was not delivered yet is given up."""
    session.result(
        session.client.delete_webhook(webhook_id), lambda _: output.say(f"{webhook_id} is deleted")
    )


@command(app, "deliveries")
def deliveries(
    session: Session,
    webhook_id: WebhookId,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=500, help="How many, the newest first.")
    ] = 50,
) -> None:
    """Show what became of the latest events: tries, answers, when the next try is."""
    found = session.client.deliveries(webhook_id, limit=limit)
    session.rows(found, _DELIVERIES, empty="nothing was sent yet")
