"""Every RPC says who may call it, and on whose runs."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def rpcs() -> list[str]:
    """Returns "Service/Method" of every RPC of the protos."""
    found: list[str] = []
    for proto in sorted((ROOT / "proto").rglob("*.proto")):
        service = ""
        for line in proto.read_text().splitlines():
            if begins := re.match(r"service (\w+)", line):
                service = begins[1]
            elif rpc := re.match(r"\s*rpc (\w+)\(", line):
                found.append(f"{service}/{rpc[1]}")
    return found


def test_every_rpc_has_one_rule() -> None:
    rules = re.findall(
        r'^    \{"(\w+/\w+)", Needs::k\w+[,}]',
        (ROOT / "server/service/calls/rules.cc").read_text(),
        flags=re.MULTILINE,
    )
    assert len(rpcs()) > 20
    assert sorted(rules) == sorted(rpcs())
