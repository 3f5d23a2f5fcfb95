# SPDX-License-Identifier: Apache-2.0
"""The tier of the CPU copies in order, in both directions, and takes no memory that is counted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from jobs import start_meter

from reprise.base.errors import RepriseError
from reprise.torch.offload.slow_tier import SlowTier
from reprise.torch.offload.tier import tier_of


def test_bytes_go_out_and_come_back() -> None:
    tier = SlowTier(10_000_000_000)
    there = tier.slab(3_000_000).memory[:2_000_000]
    source = torch.randint(0, 256, (2_000_000,), dtype=torch.uint8)
    target = torch.zeros_like(source)

    tier.out(source, there).wait()
    tier.back(there, target).wait()

    assert torch.equal(source, target)


def test_copies_of_one_direction_are_made_in_their_order() -> None:
    tier = SlowTier(10_000_000_000)
    there = tier.slab(1_000_000).memory
    sources = [torch.full((1_000_000,), n, dtype=torch.uint8) for n in range(8)]

    copies = [tier.out(source, there) for source in sources]
    copies[-1].wait()

    assert there.eq(7).all()
    assert all(copy.done.is_set() for copy in copies)


def test_a_block_is_not_counted_and_serves_smaller_ones_too() -> None:
    meter, tier = start_meter(), SlowTier()
    before = meter.live()

    slab = tier.slab(5_000_000)

    assert tier.slab(1_000_000) is slab
    assert tier.slab(6_000_000) is not slab
    assert meter.live() == before


@pytest.mark.parametrize("text", ["0.5x", "fast", "0MB/s", "-1", ""])
def test_a_rate_that_is_none_is_refused_by_its_name(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPRISE_SLOW_TIER", text)
    with pytest.raises(RepriseError, match="REPRISE_SLOW_TIER: must be a rate such as"):
        SlowTier()


def test_a_device_without_a_tier_has_none() -> None:
    meta: Any = torch.device("meta")
    assert tier_of(meta) is None
