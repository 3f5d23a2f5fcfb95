# SPDX-License-Identifier: Apache-2.0
"""What a link to host memory can do is measured once, and told to the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from reprise.torch.offload.slow_tier import SlowTier
from reprise.torch.tape import link
from reprise.torch.tape.link import SIZES, link_to

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_the_rate_is_that_of_large_copies_under_load_and_the_latency_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Out alone: 1 byte per ns; in alone: 2; together one byte per 2 ns each way. A small copy takes
    # 1000 ns more than its bytes.
    large, small = SIZES[-1], SIZES[0]
    figures = {f"out_{large}": large, f"in_{large}": large // 2, f"both_{large}": 2 * large}
    figures |= {f"out_{small}": 2 * small + 1000, f"in_{small}": 2 * small + 3000}
    monkeypatch.setattr(link, "_measured", lambda *_: figures)

    found = link_to(SlowTier(1), CPU, 7)

    assert found.out_bytes_per_s == found.in_bytes_per_s == 500_000_000
    assert found.latency_ns == 1000
    assert found.capabilities() == (
        ":out_bytes_per_s=500000000:in_bytes_per_s=500000000:latency_ns=1000:host_bytes=7"
    )


def test_it_is_measured_once_per_machine_and_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []
    real = link._measured

    def measure(tier: Any, device: torch.device) -> dict[str, int]:
        measured.append(tier.name)
        return real(tier, device)

    monkeypatch.setattr(link, "_measured", measure)
    one = link_to(SlowTier(5_000_000_000), CPU, 1)
    again = link_to(SlowTier(5_000_000_000), CPU, 1)
    link_to(SlowTier(4_000_000_000), CPU, 1)

    assert one == again
    assert measured == ["slow tier, 4.7 GiB/s", "slow tier, 3.7 GiB/s"]
