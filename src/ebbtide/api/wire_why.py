"""Answers to why-questions, as models: documentation and tests, like `wire_answers`."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field


class WhyClaim(BaseModel):
    id: str
    kind: str
    state: str
    ref: str | None
    for_whom: str
    hosts: int
    created_at: datetime


class WhyVisit(BaseModel):
    outcome: str | None
    at: datetime | None
    next_due: datetime | None = Field(description="Null: nothing is left to do.")
    failures: int = Field(description="In a row.")


class WhyProgram(BaseModel):
    verb: str
    exit_code: int | None = Field(description="Null: it took too long and was killed.")
    at: datetime
    state: str | None = Field(description="As the machine's programs last answered.")
    handle: str | None
    output: str = Field(description="The last 4 kB of its standard error.")


class WhyNode(BaseModel):
    uid: str
    name: str
    pool: str
    cluster_id: str | None
    cluster_name: str | None
    host: str | None
    compute_class: str
    phase: str
    phase_since: datetime
    deadline: datetime | None
    end_reason: str | None
    made_for: WhyClaim | None = Field(description="The claim that ordered it; null: it fills a target.")
    taken_for: WhyClaim | None = Field(description="The claim that took it.")
    taken_because: str | None = Field(description="Why it was this node.")
    visit: WhyVisit | None
    program: WhyProgram | None = Field(description="The last program that its provider ran for it.")
    sentences: list[str] = Field(description="All of it, to be read in order.")


class WhyPool(BaseModel):
    name: str
    free: int
    resting: int = Field(description="Free hosts that rest after having been given back.")
    resting_until: datetime | None
    leaving: int
    promised: int
    headroom: int
    lendable: int = Field(description="What a target could get now.")


class WhyTarget(BaseModel):
    cluster_id: str
    cluster_name: str
    wanted: int = Field(description="Hosts, like all counts here.")
    held: int
    joining: int
    draining: int
    missing: int
    reason: str | None = Field(description="Null: the target is met.")
    since: datetime | None
    last_try: datetime | None
    next_try: datetime | None
    pauses_until: datetime | None
    pool: WhyPool
    visit: WhyVisit | None
    sentences: list[str]
