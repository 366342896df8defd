"""What all request models share: strict types, ignored extras, and refusals in sentences."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ebbtide.errors import BadInput

GPU_LIMIT = 1_000_000
_TEXT_LIMIT = 65_536


def _one_line(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    if any(ord(char) < 32 or ord(char) == 127 for char in text):
        raise ValueError("must be one line without control characters")
    return text


Name = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(_one_line)]
Text = Annotated[str, Field(max_length=_TEXT_LIMIT)]
GpuCount = Annotated[int, Field(ge=0, le=GPU_LIMIT)]


class Wire(BaseModel):
    """Strict: `true` is not 1 and "8" is not 8. Unknown fields, which other clients send, are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    @classmethod
    def read(cls, values: dict[str, Any]) -> Self:
        """Build from JSON without nulls; BadInput with the field and what to send instead."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise refusal(error) from None

    def given(self) -> dict[str, Any]:
        """What was sent, verbatim: fields that were left out stay out, at every level."""
        return self.model_dump(mode="json", exclude_unset=True, by_alias=True)


def refusal(error: ValidationError) -> BadInput:
    """The first thing wrong, missing fields before wrong ones, as a sentence that says what to do."""
    found = sorted(error.errors(include_url=False), key=lambda each: each["type"] != "missing")
    missing = [_path(each["loc"]) for each in found if each["type"] == "missing"]
    if len(missing) > 1:
        return BadInput(
            f"{', '.join(missing[:-1])} and {missing[-1]} are required; add them", param=missing[0]
        )
    first = found[0]
    param = _path(first["loc"])
    sentence = _sentence(first["type"], first.get("ctx", {}), first["input"])
    return BadInput(f"{param} {sentence}" if param else sentence, param=param or None)


def _path(loc: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in loc)


_TYPES = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "must be a whole number of a sane size",
    "string_type": "must be a string",
    "bool_type": "must be true or false",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "list_type": "must be a list",
    "datetime_type": "must be a time like 2026-01-02T03:04:05Z",
}


def _sentence(kind: str, context: dict[str, Any], given: object) -> str:
    match kind:
        case "missing":
            return "is required; add it"
        case "greater_than_equal":
            return f"must be at least {context['ge']}, got {_short(given)}"
        case "less_than_equal":
            return f"must be at most {context['le']}, got {_short(given)}"
        case "literal_error":
            return f"must be {context['expected']}, got {_short(given)}"
        case "string_too_short":
            return "must not be empty"
        case "string_too_long" | "too_long":
            return f"is too long; at most {context['max_length']} are allowed"
        case "value_error":
            return str(context["error"])
        case _:
            return f"{_TYPES.get(kind, 'is not valid')}, got {_short(given)}"


def _short(given: object) -> str:
    text = repr(given) if not isinstance(given, bool) else str(given).lower()
    return text if len(text) <= 60 else f"{text[:57]}..."
