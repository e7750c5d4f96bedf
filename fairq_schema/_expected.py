"""
What each version should be in a database: data that is read from a real server when the version is compiled.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairq_schema._catalog import NO_SQL, Attributes, Objects, as_if_fairq
from fairq_schema._files import catalog_text
from fairq_schema._rename import DEFAULT_SCHEMA, Names, renamed_by
from fairq_schema._roles import DEFAULT_ROLES, Roles
from fairq_schema.errors import FilesError

if TYPE_CHECKING:
    from collections.abc import Container, Mapping
    from pathlib import Path

# A function's body stands in the migration; of the catalog's copy the hash is enough.
_HASH = "body sha256"


@dataclass(frozen=True, slots=True)
class Expected:
    """
    One version: its objects as if under the usual names, and the locks that the way to it takes on older tables.
    """

    objects: Objects
    locks: Mapping[str, str] | None

    def under(self, schema: str, spelled: str, roles: Roles) -> Objects:
        """
        Return the objects as they must be under this name, which PostgreSQL prints as `spelled`, and for these roles.
        """
        names = Names(schema, DEFAULT_ROLES, spelled)
        return {
            name: _without_nothing({word: _installed(word, value, names, roles) for word, value in attributes.items()})
            for name, attributes in self.objects.items()
            if not _is_about_nobody(attributes, roles)
        }

    def beside(self, variants: Mapping[str, Overlay], live: Container[str]) -> Expected:
        """
        Return the same with what another variant left: its tables and keys outlive the choice of the next one.
        """
        left = {name: each for overlay in variants.values() for name, each in overlay.objects.items() if name in live}
        return Expected({**left, **self.objects}, self.locks)


def load_expected(number: int, folder: Path | None = None) -> Expected:
    """
    Read what version `number` should be.
    """
    text = catalog_text(f"{number:04}", folder)
    if text is None:
        message = f"this installation of fairq does not say what version {number} should be: install it again"
        raise FilesError(message)
    data = json.loads(text)
    return Expected(data["objects"], data["locks"])


def load_variants(folder: Path | None = None) -> dict[str, Overlay]:
    """
    Read in which ways an installation may be another one on purpose: files beside the migrations replace a part of it.
    """
    data = json.loads(catalog_text("variants", folder) or "{}")
    return {name: Overlay(each["objects"], tuple(each["without"])) for name, each in data.items()}


@dataclass(frozen=True, slots=True)
class Overlay:
    """
    What a variant has instead or in addition, and what it is without.
    """

    objects: Objects
    without: tuple[str, ...]

    def over(self, expected: Expected) -> Expected:
        """
        Return what a version should be in this variant.
        """
        objects = {**expected.objects, **self.objects}
        return Expected({name: each for name, each in objects.items() if name not in self.without}, expected.locks)


def overlays_as_data(usual: Mapping[str, Attributes], variants: Mapping[str, Mapping[str, Attributes]]) -> str:
    """
    Write variants as the text of their file: what is not the same as usual.
    """
    found = {
        name: {
            "objects": {key: _with_hash(each) for key, each in objects.items() if usual.get(key) != each},
            "without": sorted(usual.keys() - objects.keys()),
        }
        for name, objects in variants.items()
    }
    return json.dumps(found, indent=1, sort_keys=True) + "\n"


def as_data(objects: Mapping[str, Attributes], locks: Mapping[str, str] | None) -> str:
    """
    Write a version as the text of its file, the same for the same schema, a line for each thing that may change.
    """
    hashed = {name: _with_hash(attributes) for name, attributes in objects.items()}
    return json.dumps({"locks": locks, "objects": hashed}, indent=1, sort_keys=True) + "\n"


def has_body(live: Attributes, expected: Attributes, schema: str) -> bool:
    """
    Tell whether a body is the expected one, whether the schema's name was put in by us or by hand.
    """
    body = str(live.get("body"))
    spellings = {body.replace(f'"{schema}"', DEFAULT_SCHEMA), as_if_fairq(body, schema)}
    return expected[_HASH] in {_sha256(each) for each in spellings}


def _with_hash(attributes: Attributes) -> Attributes:
    if "body" not in attributes:
        return attributes
    return {word: value for word, value in attributes.items() if word != "body"} | {_HASH: _sha256(attributes["body"])}


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _installed(word: str, value: Any, names: Names, roles: Roles) -> Any:  # noqa: ANN401  what JSON has
    if word == "owner":
        return _player(value, roles)
    if word == "roles":
        return sorted({player for role in value if (player := _player(role, roles))})
    if word == "rights":
        return _shared_out(value, roles)
    return renamed_by(names, value) if isinstance(value, str) and word not in NO_SQL else value


def _without_nothing(attributes: Attributes) -> Attributes:
    # a column on which nobody but tenants has rights, where nobody plays the tenant
    return {word: value for word, value in attributes.items() if word != "rights" or value}


def _shared_out(rights: Mapping[str, str], roles: Roles) -> dict[str, str]:
    """
    Give the rights of each part to who plays it; who plays several has the rights of all.
    """
    players: dict[str, set[str]] = {}
    for role, words in rights.items():
        player = _player(role, roles)
        if player:
            players.setdefault(player, set()).update(words.split("+"))
    return {player: "+".join(sorted(words)) for player, words in players.items()}


def _is_about_nobody(attributes: Attributes, roles: Roles) -> bool:
    # a policy for tenants alone, where nobody plays the tenant
    return "roles" in attributes and all(_player(role, roles) is None for role in attributes["roles"])


def _player(role: str, roles: Roles) -> str | None:
    part = re.fullmatch(r"fairq_(\w+)", role)
    return roles[part[1]] if part and part[1] in roles else role
