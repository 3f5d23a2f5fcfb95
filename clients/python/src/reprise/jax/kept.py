# SPDX-License-Identifier: Apache-2.0
"""Plans that earlier processes found, by the program that they are for.

They are in $XDG_CACHE_HOME/reprise/jax, one JSON file a program, budget and version. A file is
believed only as far as it is harmless: it must be this user's own, whole and well formed, its
schedule is walked over the step graph of the program, and XLA compiles the program that it makes.
What is wrong with a file, or with the folder, means that nothing is known.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from tempfile import mkstemp
from typing import Any

import jax

from reprise.agent.received import MAX_PLAN_BYTES, Plan
from reprise.base.errors import RepriseError
from reprise.base.proto_json import Fields
from reprise.jax.cache import folder, is_ours
from reprise.jax.compiled import Memory
from reprise.plan.wish import Wish

MOST_FILES = 512
MOST_TEXT = 4096


@dataclass(frozen=True, slots=True)
class Kept:
    """What was found for a program and a budget."""

    plain: Memory
    plan: Plan | None
    predicted_bytes: int
    # Why no plan was found; empty without a plan: the plain program is within the budget.
    why: str = ""
    # Whether the plan is one of lean clusters.
    lean: bool = False


def key_of(closed: Any, donated: Sequence[int], wish: Wish, most_equations: int) -> str:
    """Returns what is equal for two processes that would find the same."""
    device = jax.local_devices()[0]
    ours = sys.modules["reprise"].__version__  # which imports this one
    said = [
        (jax.__version__, version("jaxlib"), ours),
        (device.platform, device.device_kind, (device.memory_stats() or {}).get("bytes_limit")),
        (str(wish.budget), wish.time_limit_s, most_equations),
        (tuple(donated), str(closed.jaxpr)),
    ]
    return sha256(repr(said).encode(errors="backslashreplace")).hexdigest()


def read(key: str) -> Kept | None:
    """Returns what is kept under a key; None if nothing is, or nothing that can be believed."""
    try:
        # Neither through a link nor waiting for a pipe's writer.
        handle = os.open(folder() / f"{key}.json", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            if not is_ours(os.fstat(handle)):
                return None
            text = file.read(MAX_PLAN_BYTES + 1)
        return _read(text) if len(text) <= MAX_PLAN_BYTES else None
    except (OSError, ValueError, RecursionError, RepriseError):
        return None


def _read(text: bytes) -> Kept:
    found = Fields(json.loads(text), "kept")
    plain, plan = found.made("plain", Memory), found.message("plan")
    if plain is None:
        raise RepriseError("kept.plain: is missing")
    why = found.text("why")
    if len(why) > MOST_TEXT or not why.isprintable():
        raise RepriseError("kept.why: is no sentence")
    made = None if plan is None else Plan.from_message(json.loads(text)["plan"])
    if made is not None and not (made.feasible and made.sentence.isprintable()):
        raise RepriseError("kept.plan: is none")
    return Kept(plain, made, found.size("predicted_bytes"), why, found.flag("lean"))


def write(key: str, what: Kept) -> None:
    """Keeps what was found; where the folder cannot be written, nothing is kept."""
    value = asdict(what)
    if what.plan is not None:
        value["plan"]["predicted"] = {"bytes": value["plan"].pop("predicted_bytes")}
    with suppress(OSError, ValueError):
        into = folder()
        handle, temporary = mkstemp(prefix=".", dir=into)  # for this user alone
        try:
            with os.fdopen(handle, "w") as file:
                json.dump(value, file)
            os.replace(temporary, into / f"{key}.json")
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        files = sorted(into.glob("*.json"), key=lambda file: file.lstat().st_mtime)
        for old in files[:-MOST_FILES]:
            old.unlink(missing_ok=True)
