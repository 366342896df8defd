"""What tenants may ask and set beside the contract, as models: receipts, settings, capacity."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from ebbtide.api.wire_base import Wire

PodEnd = Literal["there", "exited", "killed", "unknown"]


class PodReceipt(BaseModel):
    namespace: str
    pod: str
    pod_uid: str
    kind: str
    arrived_after_notice: bool
    tolerates_cordon: bool
    first_seen_at: datetime
    grace_asked_s: int = Field(description="The pod's own terminationGracePeriodSeconds.")
    grace_given_s: int | None = Field(description="Null: it was not told by Ebbtide.")
    shortened_to_s: int | None = Field(description="Told again with less; a kubelet may ignore that.")
    sigterm_at: datetime | None
    told_by: Literal["signal", "eviction", "others"] | None
    budget_refused: str | None = Field(description="The last budget that refused its eviction.")
    budget_overridden: str | None = Field(description="The budget that would have refused and was not asked.")
    end: PodEnd
    ended_at: datetime | None
    used_s: int | None = Field(description="From its SIGTERM to its end.")
    grace_used_up: bool = Field(description="It took all of its grace, and may have been killed then.")


class CreditReceipt(BaseModel):
    reason: str
    gpu_seconds: int
    microdollars: int | None = Field(description="Below 0; null: not priced yet.")
    at: datetime


class Drain(BaseModel):
    cluster_id: str
    node_id: str
    node_uid: str
    compute_class: str
    gpus: int
    kind: Literal["reclaim", "release"]
    reason: str = Field(description="The reason of its event.")
    message: str | None
    state: Literal["draining", "left", "host_free"]
    summary: str | None = Field(description="One sentence, as soon as the node has left.")
    noticed_at: datetime
    deadline: datetime
    ends_at: datetime = Field(description="Later than the deadline only after a late notice.")
    late_notice: bool
    warned_s: int = Field(description="From the notice until SIGTERM was due.")
    sigterm_due_at: datetime
    cordoned_at: datetime | None
    first_sigterm_at: datetime | None
    left_at: datetime | None
    left_because: Literal["empty", "deadline", "cut_short"] | None
    stopped_at: datetime | None = Field(description="The machine's stop was confirmed.")
    out_of_cluster_at: datetime | None
    host_free_at: datetime | None = Field(description="Nothing was left of it on the host.")
    window_s: int
    used_s: int | None
    unused_s: int | None
    billed_s: int = Field(description="From the notice on.")
    credits: list[CreditReceipt]
    pods_by_end: dict[PodEnd, int]
    arrived_after_notice: int
    budgets_refused: list[str]
    budgets_overridden: list[str]


class DrainReceipt(Drain):
    pods: list[PodReceipt]


class DrainPage(BaseModel):
    drains: list[Drain]
    next_before: str | None = Field(description="Ask again with `before` set to it; null: there is no more.")


class SetClusterSettings(Wire):
    """What is left out or null stays."""

    warn_first_s: Annotated[int, Field(ge=0, le=86_400)] | None = None
    placement: Literal["open", "explicit"] | None = None


class ClusterSettings(BaseModel):
    cluster_id: str
    warn_first_s: int = Field(description="From the notice to SIGTERM; the deadline does not move.")
    placement: Literal["open", "explicit"]
    longest_warn_first_s: int


class Offer(BaseModel):
    region: str
    gpu_type: str
    gpus_per_host: int
    standard_gpus: int = Field(description="What an order would be granted now.")
    standard_more: bool = Field(description="There is more than is told.")
    preemptible_gpus: int = Field(description="What a target would be filled with now.")
    preemptible_more: bool
    microdollars_per_gpu_hour: int | None
    preemptible_microdollars_per_gpu_hour: int | None


class QuotaLeft(BaseModel):
    standard_gpus: int | None = Field(description="Null: no quota.")
    preemptible_gpus: int | None


class Supply(BaseModel):
    at: datetime
    offers: list[Offer]
    quota_left: QuotaLeft


class Figures(BaseModel):
    samples: int = Field(description="All of them, those that were cut off included.")
    ended: int
    enough: bool
    median_s: int | None
    p90_s: int | None
    note: str | None = Field(description="Why there is no figure.")


class Observed(BaseModel):
    region: str
    gpu_type: str
    since: datetime
    until: datetime
    fill: Figures = Field(description="From a raised target to a RUNNING node.")
    life: Figures = Field(description="From RUNNING to the notice of a reclaim.")


class ObservedList(BaseModel):
    history: list[Observed]
