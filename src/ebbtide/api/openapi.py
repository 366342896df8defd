"""The OpenAPI document, where the framework cannot know: bodies that are read by our own hand."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

_models: list[type[BaseModel]] = []
_REF = "#/components/schemas/{model}"
_TOO_LARGE = {
    "description": "The body is larger than the server reads.",
    "content": {"application/json": {"schema": {"$ref": _REF.format(model="Error")}}},
}


def body_of(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """`openapi_extra` for a route whose JSON body is `model`."""
    _models.append(model)
    extra = _body("application/json", {"$ref": _REF.format(model=model.__name__)})
    extra["requestBody"]["required"] = required
    return extra


def object_body(description: str) -> dict[str, Any]:
    """`openapi_extra` for a route whose body is some JSON object."""
    return _body("application/json", {"type": "object", "description": description})


def text_body(description: str) -> dict[str, Any]:
    """`openapi_extra` for a route whose body is text."""
    return _body("application/yaml", {"type": "string", "description": description})


def _body(media_type: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {media_type: {"schema": schema}}}}


class OpenAPI:
    """Builds the document of `app` once, on first use."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._built: dict[str, Any] | None = None

    def __call__(self) -> dict[str, Any]:
        if self._built is None:
            self._built = self._build()
        return self._built

    def _build(self) -> dict[str, Any]:
        app = self._app
        document = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            routes=app.routes,
            tags=app.openapi_tags,
        )
        _, bodies = models_json_schema([(model, "validation") for model in _models], ref_template=_REF)
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        schemas.update({name: each for name, each in bodies.get("$defs", {}).items() if name not in schemas})
        for operations in document["paths"].values():
            for operation in operations.values():
                operation["responses"].pop("422", None)  # never answered: bad input is 400
                if "requestBody" in operation:
                    operation["responses"]["413"] = _TOO_LARGE
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        return document
