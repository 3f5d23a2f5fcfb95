# SPDX-License-Identifier: Apache-2.0
"""Which process of a job this one is.

several_ranks()     # do others wait for the collectives of this one?
rank_here()
unwrapped(model)    # what computes, where a wrapper only communicates
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

__all__ = ["rank_here", "ranks_have_met", "several_ranks", "unwrapped"]


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


def unwrapped(model: nn.Module) -> nn.Module:
    """Returns the model inside DistributedDataParallel, which communicates before and after its
    forward; any other model itself."""
    inner = getattr(model, "module", None)
    wraps = isinstance(model, nn.parallel.DistributedDataParallel)
    return inner if wraps and isinstance(inner, nn.Module) else model
