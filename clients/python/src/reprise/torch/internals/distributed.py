# SPDX-License-Identifier: Apache-2.0
"""Which process of a job this one is.

several_ranks()     # do others wait for the collectives of this one?
rank_here()
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["rank_here", "ranks_have_met", "several_ranks"]


def ranks_have_met() -> bool:
    """Returns whether the program has joined a process group, if only one of itself."""
    distributed: Any = torch.distributed
    return bool(distributed.is_available() and distributed.is_initialized())


def several_ranks() -> bool:
    """Returns whether other ranks wait for the collectives of this process."""
    return ranks_have_met() and torch.distributed.get_world_size() > 1


def rank_here() -> int:
    """Returns the rank of this process; 0 if there is no other."""
    return torch.distributed.get_rank() if ranks_have_met() else 0
