"""Whose data a host may still carry, and when it is wiped."""

from __future__ import annotations

from enum import StrEnum

# Instead of one project's id: data of several, or of somebody who is not a project here.
SEVERAL = "several"


class WipePolicy(StrEnum):
    """A pool's policy: a host is wiped after every node, before another project's node, or never."""

    ALWAYS = "always"
    BETWEEN_PROJECTS = "between_projects"
    NEVER = "never"


def wipes_first(policy: WipePolicy, unwiped_project: str | None, project_id: str) -> bool:
    """Whether a host must be wiped before a node of the project starts on it.

    unwiped_project: whose data it still carries, None: nobody's. Under `always` that happens when the policy
    was another one before.
    """
    if unwiped_project is None or policy is WipePolicy.NEVER:
        return False
    return policy is WipePolicy.ALWAYS or unwiped_project != project_id


def carried_after(unwiped_project: str | None, project_id: str) -> str:
    """Whose data a host carries after a node of the project left it unwiped."""
    return project_id if unwiped_project in (None, project_id) else SEVERAL
