"""JSON Schemas as regular expressions of bounded depth: a text that matches one is valid.

Members of an object have the order of the schema, with at most a space after a comma or colon. What
a regular expression cannot say, and what is not listed here, is refused by its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from gidd.common.terminal import shorten
from gidd.errors import ConfigError
from gidd.pipeline.patterns import MAX_CHARACTERS, too_large

_MAX_DEPTH = 5
"""Objects and arrays inside of each other."""
_MAX_INTEGERS, _MAX_REFERENCES, _MAX_PARTS = 1_000, 20, 5_000
_ANNOTATIONS = (
    *("$anchor", "$comment", "$defs", "$id", "$schema", "default", "definitions", "deprecated"),
    *("description", "examples", "readOnly", "strict", "title", "writeOnly"),
)
_CHARACTER = r'(?:[^"\\\x00-\x1f\x7f]|\\["\\/bfnrt])'
_INTEGER = "-?(?:0|[1-9][0-9]{0,17})"
_NUMBER = rf"{_INTEGER}(?:\.[0-9]{{1,18}})?(?:[eE][+-]?[0-9]{{1,2}})?"
_SCALARS = {"integer": _INTEGER, "number": _NUMBER, "boolean": "(?:true|false)", "null": "null"}
_KEYWORDS = {
    "string": {"minLength", "maxLength"},
    "array": {"items", "minItems", "maxItems"},
    "object": {"properties", "required", "additionalProperties"},
    "integer": {"minimum", "maximum"},
}
_TYPES: dict[str, Any] = {
    "object": Mapping,
    "array": list,
    "string": str,
    "number": int | float,
    "integer": int,
    "boolean": bool,
    "null": type(None),
}

_Json = Mapping[str, Any]


def schema_pattern(schema: object) -> str:
    """Return a regular expression of texts that are valid JSON of a schema.

    Not of all: strings have no escapes of code points, numbers at most 18 digits on either side of
    the point, and objects only the properties that are listed. Objects and arrays are at most 5
    inside of each other: what is deeper is left out where the schema permits it.
    """
    try:
        text = json.dumps(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"schema must be a JSON Schema, got {shorten(schema)}.") from error
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(f"schema must have at most {MAX_CHARACTERS:,} characters of JSON.")
    try:
        pattern = _Schema(schema).pattern(schema, 0, "schema")
    except RecursionError as error:
        raise ConfigError("schema must have fewer parts inside of each other.") from error
    if pattern is None:
        raise ConfigError(
            f"schema must have a value with at most {_MAX_DEPTH} objects and arrays inside of each "
            "other. Remove a required property that refers to the schema itself."
        )
    return pattern


class _Schema:
    """The patterns of a schema and of its parts; None for a value that would be too deep."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._num_parts = self._num_references = 0

    def pattern(self, schema: Any, depth: int, path: str) -> str | None:
        if schema is True:
            schema = {}
        if not isinstance(schema, Mapping):
            raise ConfigError(f"{path} must be an object, got {shorten(schema)}.")
        self._num_parts += 1
        if self._num_parts > _MAX_PARTS:
            raise too_large("the schema")
        schema = cast(_Json, {k: v for k, v in schema.items() if k not in _ANNOTATIONS})
        for name, build in self._of_keyword.items():
            if name in schema:
                self._only(schema, {name}, path)
                return build(schema[name], depth, f"{path}.{name}")
        for name in ("enum", "const"):
            if name in schema:
                self._only(schema, {name, "type"}, path)
                values = schema["enum"] if name == "enum" else [schema["const"]]
                return self._values(values, schema.get("type"), f"{path}.{name}")
        types = schema.get("type", [kind for kind in _TYPES if kind != "integer"])
        types = [types] if isinstance(types, str) else types
        if (
            not isinstance(types, list)
            or not types
            or any(type(t) is not str or t not in _TYPES for t in types)
        ):
            raise ConfigError(f"{path}.type must be of {', '.join(_TYPES)}, got {shorten(types)}.")
        self._only(schema, {"type"}.union(*(_KEYWORDS.get(kind, set()) for kind in types)), path)
        if "type" not in schema:  # any value: what it contains is not much deeper
            depth = max(depth, _MAX_DEPTH - 1)
        return self._either([self._of_type(kind, schema, depth, path) for kind in types])

    @property
    def _of_keyword(self) -> dict[str, Callable[[Any, int, str], str | None]]:
        return {
            "$ref": self._reference,
            "anyOf": self._any_of,
        }

    def _only(self, schema: _Json, allowed: set[str], path: str) -> None:
        if unknown := sorted(str(name) for name in schema if name not in allowed):
            raise ConfigError(
                f"{path} must not have {', '.join(unknown)}: not supported"
                f"{' beside ' + ', '.join(sorted(allowed & schema.keys())) if allowed else ''}. "
                "Supported are type, enum, const, anyOf, $ref and "
                f"{', '.join(sorted(set[str]().union(*_KEYWORDS.values())))}."
            )

    def _either(self, patterns: Sequence[str | None]) -> str | None:
        known = list(dict.fromkeys(pattern for pattern in patterns if pattern is not None))
        if len(known) < 2:
            return known[0] if known else None
        return self._limited(f"(?:{'|'.join(known)})")

    def _limited(self, pattern: str) -> str:
        if len(pattern) > MAX_CHARACTERS:
            raise too_large("the schema")
        return pattern

    def _any_of(self, schemas: Any, depth: int, path: str) -> str | None:
        if not isinstance(schemas, list) or not schemas:
            raise ConfigError(f"{path} must be a list of schemas, got {shorten(schemas)}.")
        parts = [self.pattern(part, depth, f"{path}[{i}]") for i, part in enumerate(schemas)]
        return self._either(parts)

    def _values(self, values: Any, kinds: Any, path: str) -> str:
        kinds = list(_TYPES) if kinds is None else kinds if isinstance(kinds, list) else [kinds]
        kinds = [kind for kind in kinds if isinstance(kind, str)]
        values = values if isinstance(values, list) else []
        typed = [
            value
            for value in values
            if any(isinstance(value, _TYPES.get(kind, ())) for kind in kinds)
            and (type(value) is not bool or "boolean" in kinds)
        ]
        written = [re.escape(json.dumps(value, ensure_ascii=False)) for value in typed]
        if not written:
            raise ConfigError(f"{path} must have a value of the type, got {shorten(values)}.")
        return self._either(written) or ""

    def _reference(self, reference: Any, depth: int, path: str) -> str | None:
        target: Any = self._root
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise ConfigError(f"{path} must be of this schema, #/..., got {shorten(reference)}.")
        for part in reference.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            target = target.get(key) if isinstance(target, Mapping) else None
        if target is None:
            raise ConfigError(f"{path} must name a part of the schema, got {shorten(reference)}.")
        self._num_references += 1
        try:  # references to each other without end
            return (
                None
                if self._num_references > _MAX_REFERENCES
                else self.pattern(target, depth, reference)
            )
        finally:
            self._num_references -= 1

    def _of_type(self, kind: str, schema: _Json, depth: int, path: str) -> str | None:
        if kind == "integer" and ("minimum" in schema or "maximum" in schema):
            least, most = schema.get("minimum"), schema.get("maximum")
            if type(least) is not int or type(most) is not int or most - least >= _MAX_INTEGERS:
                raise ConfigError(
                    f"{path} must have both minimum and maximum, integers at most {_MAX_INTEGERS} "
                    f"apart, or neither, got {shorten(least)} and {shorten(most)}."
                )
            return self._either([str(n) for n in range(least, most + 1)])
        if kind in _SCALARS:
            return _SCALARS[kind]
        if kind == "string":
            return f'"{_CHARACTER}{self._count(schema, "Length", path)}"'
        if depth >= _MAX_DEPTH:
            return None
        return (self._array if kind == "array" else self._object)(schema, depth + 1, path)

    def _count(self, schema: _Json, suffix: str, path: str, used: int = 0) -> str:
        """Return the repeat of minItems and maxItems, or of lengths, without those `used`."""
        least, most = schema.get(f"min{suffix}", 0), schema.get(f"max{suffix}")
        for name, count in ((f"min{suffix}", least), (f"max{suffix}", most)):
            if count is not None and (type(count) is not int or count < 0):
                raise ConfigError(f"{path}.{name} must be an integer of at least 0, got {count!r}.")
        if most is not None and most < least:
            raise ConfigError(f"{path}.max{suffix} must be at least {least}, got {most}.")
        if max(least, most or 0) > MAX_CHARACTERS:
            raise too_large(path)
        least, most = max(0, least - used), None if most is None else most - used
        return "*" if (least, most) == (0, None) else f"{{{least},{'' if most is None else most}}}"

    def _array(self, schema: _Json, depth: int, path: str) -> str | None:
        item = self.pattern(schema.get("items", True), depth, f"{path}.items")
        repeat = self._count(schema, "Items", path, used=1)
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if item is None or most == 0:
            return None if least else r"\[\]"
        several = self._limited(f"{item}(?:, ?{item}){repeat}")
        return rf"\[{several}\]" if least else rf"\[(?:{several})?\]"

    def _object(self, schema: _Json, depth: int, path: str) -> str | None:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, Mapping) or not isinstance(required, list):
            raise ConfigError(f"{path} must have an object of properties and a list of required.")
        if missing := [n for n in required if not isinstance(n, str) or n not in properties]:
            raise ConfigError(f"{path}.required must be in properties, got {shorten(missing)}.")
        members: list[tuple[str, bool]] = []
        further = schema.get("additionalProperties", True)
        if not properties and further is not False:
            value = self.pattern(further, depth, f"{path}.additionalProperties")
            if value is None:
                return r"\{\}"
            member = f'"{_CHARACTER}*": ?{value}'
            return self._limited(rf"\{{(?:{member}(?:, ?{member})*)?\}}")
        for name, part in properties.items():
            value = self.pattern(part, depth, f"{path}.properties.{shorten(name)}")
            if value is not None:
                key = re.escape(json.dumps(name, ensure_ascii=False))
                members.append((f"{key}: ?{value}", name in required))
            elif name in required:
                return None
        # one pattern for each member that can come first: all before it are optional
        patterns, optional = list[str](), True
        for i, (member, is_required) in enumerate(members):
            rest = (f"(?:, ?{m}){'' if r else '?'}" for m, r in members[i + 1 :])
            patterns.append(self._limited(member + "".join(rest)))
            if is_required:
                optional = False
                break
        return rf"\{{{self._either([*patterns, *([''] if optional else [])])}\}}"
