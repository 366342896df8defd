"""What our own endpoints answer, as models: documentation and tests, like `wire_answers`."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field


class DrainingHost(BaseModel):
    host: str
    deadline: datetime | None


class Claim(BaseModel):
    id: str
    kind: str
    pool: str
    hosts: int
    ref: str | None
    for_whom: str = Field(alias="for")
    state: str
    given: list[str] = Field(description="Names of the hosts handed over.")
    draining: list[DrainingHost]
    waiting: int = Field(description="Hosts promised and not yet there.")
    created_at: datetime
    served_at: datetime | None
    ended_at: datetime | None


class ClaimList(BaseModel):
    claims: list[Claim]


class Pool(BaseModel):
    name: str
    region: str
    gpu_type: str
    gpus_per_host: int
    hosts: int
    headroom_hosts: int
    counts: dict[str, int] = Field(description="Hosts by what they are doing; they sum to `hosts`.")
    promised: int
    microdollars_per_gpu_hour: int | None
    preemptible_microdollars_per_gpu_hour: int | None
    provider: str
    wipe: str = Field(description="When its hosts are wiped.")


class PoolList(BaseModel):
    pools: list[Pool]


class Host(BaseModel):
    id: str
    name: str
    pool: str
    fabric_block: str
    state: str
    state_reason: str | None
    source: str
    bucket: str
    node_name: str | None
    node_uid: str | None
    cluster_id: str | None
    lent_to: str | None
    since: datetime | None


class HostList(BaseModel):
    hosts: list[Host]


class FleetNode(BaseModel):
    uid: str
    name: str
    cluster_id: str | None
    compute_class: str
    phase: str
    gpus: int
    host: str | None
    instance_id: str | None
    created_at: datetime
    running_at: datetime | None
    draining_at: datetime | None
    deadline: datetime | None
    removed_at: datetime | None
    drain_kind: str | None
    end_reason: str | None
    why: str | None
    outcome: str | None
    said: str | None = Field(description="What its provider's program last wrote for people, one line.")


class FleetNodeList(BaseModel):
    nodes: list[FleetNode]


class UsageLine(BaseModel):
    cluster_id: str
    cluster_name: str
    project_id: str
    compute_class: str
    gpu_type: str
    node: str | None
    gpu_seconds: int
    node_seconds: int
    microdollars_per_gpu_hour: int | None
    microdollars: int | None
    saved_microdollars: int | None


class CreditLine(BaseModel):
    cluster_id: str
    node: str | None
    reason: str
    microdollars: int
    at: datetime


class UsageReport(BaseModel):
    from_: datetime = Field(alias="from")
    to: datetime
    sealed_until: datetime | None
    lines: list[UsageLine]
    credits: list[CreditLine]
    total_gpu_seconds: int
    total_microdollars: int
    total_saved_microdollars: int
    total_credit_microdollars: int
    unpriced_lines: int
