"""Bodies and answers about settings."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, Field, StrictBool, StrictInt, StrictStr

from ebbtide.api.wire_base import Name, Wire

Value = StrictBool | StrictInt | StrictStr


class ChangeSettings(Wire):
    """set:   values by the settings' names
    reset: names of settings that shall have the processes' own values again
    """

    set_: Annotated[dict[Name, Value] | None, Field(alias="set", max_length=100)] = None
    reset: Annotated[list[Name] | None, Field(max_length=100)] = None


class Setting(BaseModel):
    name: str
    variable: str = Field(description="The environment variable of the processes.")
    about: str
    live: bool = Field(description="Whether it can change while processes run.")
    value: Value
    source: Literal["stored", "environment", "default"]
    default: Value
    environment: Value = Field(description="What the answering process was started with.")
    stored: Value | None
    least: int | None
    most: int | None
    changed_at: datetime | None
    changed_by: str | None = Field(description="Whose key.")


class SettingList(BaseModel):
    settings: list[Setting]
