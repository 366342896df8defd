"""Answers about one node, and about regions, as the operator sees them."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from ebbtide.api.wire_fleet_answers import Pool
from ebbtide.api.wire_hosts import Stay
from ebbtide.api.wire_why import WhyNode


class PhaseChange(BaseModel):
    phase: str
    at: datetime


class NodeEvent(BaseModel):
    number: int = Field(description="In its cluster's stream.")
    reason: str
    message: str
    at: datetime


class Machine(BaseModel):
    """What the operator's own programs said of a node's machine."""

    instance_id: str
    address: str
    state: str | None
    verb: str | None = Field(description="The program that ran last.")
    exit_code: int | None = Field(description="How it ended; null: it took too long.")
    output: str = Field(description="The last of its standard error.")
    ran_at: datetime | None
    gone_at: datetime | None
    wiped_by: str


class NodeWipe(BaseModel):
    moment: Literal["before", "after"]
    wiped_by: str
    at: datetime


class NodeReport(BaseModel):
    stay: Stay
    why: WhyNode
    timeline: list[PhaseChange]
    events: list[NodeEvent]
    machine: Machine | None
    wipes: list[NodeWipe]


class FleetDriverVersion(BaseModel):
    id: str
    cuda_version: str
    nvidia_driver_version: str
    os: str


class FleetRegion(BaseModel):
    name: str
    driver_versions: list[FleetDriverVersion]
    pools: list[Pool]


class FleetRegionList(BaseModel):
    regions: list[FleetRegion]
