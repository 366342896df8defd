"""Exit codes, documented in docs/cli.md, and how each error becomes one."""

from __future__ import annotations

from ebbtide.errors import BadInput, EbbtideError, StartupError, Unauthenticated

OK = 0
REFUSED = 1  # the server said no, or what was wanted did not happen
USAGE = 2  # the command itself is wrong: an option, a file, no connection known
UNREACHABLE = 3  # nothing answers, or the server has a fault of its own
NOT_KNOWN = 4  # the key is missing or not known
OUT_OF_TIME = 5  # a --wait ran out; what it waited for goes on
INTERRUPTED = 130


class UsageError(BadInput):
    """The command line, a local file or the environment is wrong; nothing was asked of a server."""


class OutOfTime(EbbtideError):
    """A wait ended before what it waited for."""


def code_of(error: EbbtideError) -> int:
    """The exit code for an error. By class name where naming the class would load the HTTP client."""
    if isinstance(error, UsageError | StartupError):
        return USAGE
    if isinstance(error, Unauthenticated):
        return NOT_KNOWN
    if isinstance(error, OutOfTime):
        return OUT_OF_TIME
    return UNREACHABLE if type(error).__name__ in ("Unreachable", "ServerFault") else REFUSED


def next_step(error: EbbtideError) -> str | None:
    """What to try next, where the message itself cannot know."""
    if isinstance(error, Unauthenticated):
        return "use the key that `ebbtide up` wrote: source ebbtide-data/connection.env (or give --key)"
    return {
        "Unreachable": "start one with `ebbtide up`, or name a running one with --url or EBBTIDE_URL",
        "ServerFault": "look at the server's log; it knows what happened",
        "Forbidden": "the operator's key is in the server's connection.env; give it with --key",
    }.get(type(error).__name__)
