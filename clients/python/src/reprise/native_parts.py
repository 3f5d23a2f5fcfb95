# SPDX-License-Identifier: Apache-2.0
"""Reports whether the installed torch is a tested one, and which parts of the adapter are compiled
for it.

    python -m reprise.native_parts      # JSON, one check per part, as `reprise doctor` prints them

Two parts are C++ that is compiled against torch's headers at their first use: the native engine of
the tape, without which plans run in Python, and the memory probe, without which peaks on a CPU are
lower bounds. Nothing is built here.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from reprise.base.errors import RepriseError

if TYPE_CHECKING:
    from reprise.torch.internals.native import Native


Check = dict[str, str]


def _check(name: str, part: Native, without: str, off: str) -> Check:
    """Returns the check of one part: it is built, will be built, or is replaced by Python, and
    why."""
    if off:
        return _said(name, "ok", f"replaced by Python ({off}): {without}")
    shipped = part.prebuilt()
    if shipped is not None:
        return _said(name, "ok", f"came with the package for this torch ({shipped})")
    folder = part.cache_folder()
    if folder is None:
        return _said(
            name,
            "warning",
            f"replaced by Python (no cache folder can be written): {without}",
            "set XDG_CACHE_HOME to a folder that the job can write",
        )
    built = part.built(folder)
    if built is not None:
        return _said(name, "ok", f"built for this torch ({built})")
    try:
        compiler = part._compiler()
    except RepriseError as error:
        return _said(name, "warning", f"replaced by Python ({error}): {without}", "install g++")
    return _said(
        name,
        "ok",
        f"not built yet: {compiler} builds it at its first use; until then {without}",
        f"to build it now: python -m {part.module} build",
    )


def _said(name: str, health: str, found: str, advice: str = "") -> Check:
    return {"check": name, "health": health, "found": found, "advice": advice}


def main() -> int:
    """Prints the checks; returns 0, or 1 after printing one sentence if torch cannot be
    imported."""
    try:
        from reprise.torch.compiled.fast import FAST
        from reprise.torch.internals import versions
        from reprise.torch.meter.probe import PROBE
    except Exception as error:
        print(f"reprise: torch cannot be used: {error}", file=sys.stderr)
        return 1
    off = "REPRISE_FAST=0" if os.environ.get("REPRISE_FAST") == "0" else versions.careful()
    print(
        json.dumps(
            [
                _said("release", *versions.described()),
                _check("tape", FAST, "plans run in Python alone", off),
                _check("probe", PROBE, "peaks on a CPU are lower bounds", ""),
            ]
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
