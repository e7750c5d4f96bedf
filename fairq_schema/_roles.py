"""
Which database roles play the parts of fairq: the usual names, names chosen at installation, or the login itself.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias

from fairq_schema.errors import BadRolesError

if TYPE_CHECKING:
    from collections.abc import Mapping

# Part -> role. Only the tenant's part may be played by nobody: without it there is just one kind of user.
Roles: TypeAlias = "Mapping[str, str | None]"

PARTS = ("owner", "api", "worker", "producer", "tenant", "operator")
DEFAULT_ROLES: Roles = {part: f"fairq_{part}" for part in PARTS}

# As for schemas: no character that could end the literal or the body it is put into.
_ALLOWED = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_ -]*")
_BYTES_OF_A_NAME = 63
_RESERVED = re.compile(r"public|none|pg_.*|current_role|current_user|session_user", re.IGNORECASE)


def parse(text: str) -> dict[str, str]:
    """
    Read `worker=service_role,tenant=authenticated`.
    """
    found: dict[str, str] = {}
    for word in filter(None, (each.strip() for each in text.split(","))):
        part, equals, name = word.partition("=")
        if not equals or part in found:
            message = f"--role {text!r}: write part=role,part=role, each part once"
            raise BadRolesError(message)
        found[part] = name
    return found


def resolve(chosen: Mapping[str, str], *, installer: str | None) -> Roles:
    """
    Return who plays each part; `installer` plays those that nobody was chosen for, if it is given.

    The tenant's part cannot be the installer's: tenants are fenced in, and so would be the queue.
    """
    unknown = sorted(set(chosen) - set(PARTS))
    if unknown:
        message = f"no part {unknown[0]!r} in fairq; there are {', '.join(PARTS)}"
        raise BadRolesError(message)
    for name in chosen.values():
        _check_name(name)
    usual: Roles = DEFAULT_ROLES if installer is None else {**dict.fromkeys(PARTS, installer), "tenant": None}
    roles = {**usual, **chosen}
    if roles["tenant"] in {roles["owner"], roles["api"]}:
        message = (
            f"tenant={roles['tenant']} is also owner or api: what fences a tenant in would fence the queue in; "
            "choose another role for tenants"
        )
        raise BadRolesError(message)
    return roles


def _check_name(name: str) -> None:
    if not _ALLOWED.fullmatch(name) or len(name) > _BYTES_OF_A_NAME or _RESERVED.fullmatch(name):
        message = f"role {name!r}: use at most 63 ASCII letters, digits, '_', '-' and spaces, and no reserved name"
        raise BadRolesError(message)
