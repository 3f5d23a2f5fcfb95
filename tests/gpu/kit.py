# SPDX-License-Identifier: Apache-2.0
"""The kit that tests/gpu/bundle made, as this machine uses it.

A kit is a folder: one wheel with the programs and the parts that are compiled against one torch,
the CUDA C++ example, and `about.json`. Nothing is installed and nothing compiled where it arrives.
"""

from __future__ import annotations

import json
import os
import sys
import zipfile
from pathlib import Path
from typing import Any


class NotRun(Exception):
    """Why a script cannot run here, in one sentence."""


def unpack(kit: Path, into: Path) -> dict[str, Any]:
    """Makes the package in the kit importable here and in programs that are started, and names its
    programs in the environment. Returns what the kit says of itself. Raises NotRun where that is
    no kit."""
    wheels = sorted(kit.glob("reprise-*.whl"))
    if len(wheels) != 1 or not (kit / "about.json").is_file():
        raise NotRun(
            f"{kit}: is not a kit; make one with tests/gpu/bundle, and let it travel along"
        )
    site = into / "site"
    with zipfile.ZipFile(wheels[0]) as wheel:
        for entry in wheel.infolist():
            path = Path(wheel.extract(entry, site))
            mode = entry.external_attr >> 16
            if mode and path.is_file():
                path.chmod(mode & 0o777)
    package = site / "reprise"
    sys.path.insert(0, str(site))
    before = os.environ.get("PYTHONPATH", "")
    os.environ |= {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(site), before])),
        "REPRISE_AGENT": str(package / "libreprise_agent.so"),
        "REPRISE_DAEMON": str(package / "bin/reprised"),
    }
    example = kit / "train_mlp"
    for name in ("REPRISE_TRAIN_MLP", "REPRISE_TRAIN_MLP_HOST"):
        program = example if name == "REPRISE_TRAIN_MLP" else kit / "train_mlp_host"
        if program.is_file():
            os.environ[name] = str(program.resolve())
    about: dict[str, Any] = json.loads((kit / "about.json").read_text())
    return about


def command() -> str:
    """The path of the kit's `reprise`."""
    return str(Path(os.environ["REPRISE_DAEMON"]).with_name("reprise"))
