"""`ebbtide watch`: what happens to clusters, as it happens, over their event streams."""

from __future__ import annotations

import json
import queue
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ebbtide.cli import output
from ebbtide.cli.clusters import resolve
from ebbtide.cli.exits import UsageError
from ebbtide.cli.session import Session, command
from ebbtide.clock import monotonic
from ebbtide.errors import EbbtideError, NotFound

if TYPE_CHECKING:
    from ebbtide.client import Client

Json = dict[str, Any]

_MOST = 50  # clusters at once; each takes a connection
_LOOK_FOR_NEW_EVERY_S = 5.0
_WAITS_S = (0.5, 1.0, 2.0, 5.0)
_STYLES = {
    "TogetherScaledUp": "green",
    "TogetherScaledDown": "dim",
    "TogetherPreempted": "yellow",
    "EbbtideNodeLost": "red",
    "EbbtideNodeFailed": "red",
    "EbbtideGraceExpired": "red",
    "EbbtideBudgetOverridden": "yellow",
    "EbbtidePodArrived": "yellow",
}


@dataclass(frozen=True, slots=True)
class _News:
    """Something from a follower: an event, a remark for the person, or the end of its cluster."""

    cluster: Json
    event: Json | None = None
    remark: str = ""
    gone: bool = False
    failure: EbbtideError | None = None


@dataclass(slots=True)
class _Followed:
    """Clusters that have a follower, by id, and what the followers say."""

    client: Client
    news: queue.Queue[_News] = field(default_factory=queue.Queue)
    names: dict[str, Json] = field(default_factory=dict)
    over: threading.Event = field(default_factory=threading.Event)

    def begin(self, cluster: Json, after: int) -> None:
        self.names[cluster["cluster_id"]] = cluster
        # A daemon: it waits in a read that nothing but the program's end interrupts.
        args = (self.client, cluster, after, self.news, self.over)
        threading.Thread(target=_follow, args=args, daemon=True).start()


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    command(app, "watch")(watch)


def watch(
    session: Session,
    cluster: Annotated[
        str | None, typer.Argument(metavar="CLUSTER", help="Its id or name; all clusters if not given.")
    ] = None,
    last: Annotated[
        int, typer.Option("--last", metavar="N", min=0, help="Begin with so many past events.")
    ] = 10,
) -> None:
    """Show what happens to clusters as it happens, until Ctrl-C. With --json one event per line.

    A broken connection is taken up again where it broke off: no event is missed, none comes twice.
    """
    try:
        _watch(session, cluster, last)
    except KeyboardInterrupt:
        return  # the way to end it


def _watch(session: Session, ref: str | None, last: int) -> None:
    client, as_json = session.client, session.line_by_line
    clusters = client.clusters() if ref is None else [resolve(client, ref)]
    if len(clusters) > _MOST:
        raise UsageError(f"there are {len(clusters)} clusters; name the one to watch")
    followed = _Followed(client)
    past: list[tuple[Json, Json]] = []
    for cluster in clusters:
        events, after = _past(client, cluster["cluster_id"], last)
        past += [(cluster, event) for event in events]
        followed.begin(cluster, after)
    past.sort(key=lambda each: (each[1]["timestamp"], each[1]["number"]))
    for cluster, event in past[len(past) - min(last, len(past)) :]:
        _tell(cluster, event, as_json=as_json)
    watched = clusters[0]["cluster_name"] if ref is not None else "all clusters"
    try:
        with _waiting(f"watching {watched}; Ctrl-C ends"):
            _listen(followed, only=ref is not None, as_json=as_json)
    finally:
        followed.over.set()


def _past(client: Client, cluster_id: str, last: int) -> tuple[list[Json], int]:
    """The last events so far, and the number of the very last."""
    kept: deque[Json] = deque(maxlen=last)
    after = 0
    while (page := client.events(cluster_id, after=after))["events"]:
        kept += page["events"]
        after = page["next_after"]
    return list(kept), after


def _listen(followed: _Followed, *, only: bool, as_json: bool) -> None:
    """Tell all news. Ends when the one cluster that is watched has gone. Raises what a follower raised."""
    looked = monotonic()
    while True:
        try:
            news = followed.news.get(timeout=1.0)
        except queue.Empty:
            news = None
        if news is not None:
            if news.failure:
                raise news.failure
            if news.event:
                _tell(news.cluster, news.event, as_json=as_json)
            if news.remark:
                output.note(news.remark)
            if news.gone and only:
                return
        if not only and monotonic() - looked >= _LOOK_FOR_NEW_EVERY_S:
            looked = monotonic()
            _look_for_new(followed)


def _look_for_new(followed: _Followed) -> None:
    try:
        clusters = followed.client.clusters()
    except EbbtideError:  # the followers tell what is the matter, and when it is over
        return
    for cluster in clusters:
        if cluster["cluster_id"] not in followed.names and len(followed.names) < _MOST:
            followed.begin(cluster, 0)


def _follow(
    client: Client, cluster: Json, after: int, news: queue.Queue[_News], over: threading.Event
) -> None:
    """One cluster's stream, taken up again after each break, until the cluster has gone or the watch is
    over.
    """
    name, breaks = cluster["cluster_name"], 0
    while not over.is_set():
        why = "the server ended it"
        try:
            for event in client.follow(cluster["cluster_id"], after=after):
                if breaks > 1:
                    news.put(_News(cluster, remark=f"{name}: the stream is back"))
                breaks, after = 0, event["number"]
                news.put(_News(cluster, event=event))
        except NotFound:
            news.put(_News(cluster, remark=f"{name} is gone", gone=True))
            return
        except EbbtideError as error:
            if type(error).__name__ not in ("Unreachable", "ServerFault") and error.code != "rate_limited":
                news.put(_News(cluster, failure=error))
                return
            why = error.message
        except RuntimeError:
            if over.is_set():  # the command's end closed the client under this thread
                return
            raise
        if breaks == 1:  # the first break may be a server that starts again; no word for it
            news.put(_News(cluster, remark=f"{name}: {why}; trying again"))
        over.wait(_WAITS_S[min(breaks, len(_WAITS_S) - 1)])
        breaks += 1


def _tell(cluster: Json, event: Json, *, as_json: bool) -> None:
    name = cluster["cluster_name"]
    if as_json:
        print(
            json.dumps(
                {"cluster_id": cluster["cluster_id"], "cluster_name": name, **event}, ensure_ascii=False
            ),
            flush=True,
        )
        return
    head = f"{event['timestamp']}  {name}  {event['reason']:<20}  {event['node_id']}"
    output.say(f"{head}  {event['message']}", _STYLES.get(event["reason"], ""))


@contextmanager
def _waiting(sentence: str) -> Iterator[None]:
    """On a terminal a line at the bottom says that it goes on."""
    console = output.console(stderr=True)
    if not console.is_terminal:
        yield
        return
    from rich.markup import escape

    with console.status(escape(sentence)):
        yield
