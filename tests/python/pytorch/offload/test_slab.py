# SPDX-License-Identifier: Apache-2.0
"""Places on the host do not overlap while they are needed, and are used again afterwards."""

from __future__ import annotations

import random

import torch

from reprise.torch.offload.slab import Slab, Stay, laid_out


def test_what_is_there_at_once_does_not_overlap_and_the_rest_shares_places() -> None:
    # 0 and 1 overlap in time, 2 comes when 0 has gone.
    places, total = laid_out([Stay(0, 1000, 1, 5), Stay(1, 512, 2, 9), Stay(2, 700, 6, 8)])

    assert places == {0: 0, 1: 1024, 2: 0}
    assert total == 1536


def test_random_stays_never_overlap() -> None:
    rng = random.Random(0)
    for _ in range(50):
        stays = []
        for number in range(rng.randrange(1, 40)):
            first = rng.randrange(100)
            stays.append(Stay(number, rng.randrange(1, 5000), first, first + rng.randrange(40)))
        places, total = laid_out(stays)
        for one in stays:
            assert places[one.storage] + one.bytes <= total
            for other in stays[: one.storage]:
                apart = one.first > other.last or other.first > one.last
                left, right = sorted((one, other), key=lambda stay: places[stay.storage])
                assert apart or places[left.storage] + left.bytes <= places[right.storage]


class Needs:
    def __init__(self, needs_host: bool = True) -> None:
        self.needs_host = needs_host


def test_a_place_is_given_when_its_owners_are_done_or_gone() -> None:
    slab = Slab(torch.empty(4096, dtype=torch.uint8))
    one, other, third = Needs(), Needs(), Needs()

    assert slab.claim(0, 1000, one)
    assert slab.claim(1000, 1000, other)
    assert not slab.claim(500, 1000, third)
    one.needs_host = False
    assert not slab.claim(500, 1000, third)
    del other
    assert slab.claim(500, 1000, third)
    assert slab.claim(500, 1000, third)  # once more, for another forward
    assert not slab.claim(1499, 1, Needs())
    assert slab.claim(1500, 1, Needs())
