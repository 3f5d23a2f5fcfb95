# SPDX-License-Identifier: Apache-2.0
"""Copies without memory of models that `fully_shard` (FSDP2) has divided among ranks.

    is_sharded(model)
    refuse_unknown(model)                    # RepriseError: says what about it is not copied
    copy_parameters(model, memo, device)     # under a fake mode, before others are copied
    copy_modules(model, memo)                # when all tensors have been copied
    shard_copies(model, memo)                # under a fake mode: the copies are sharded alike
    gathered_bytes(model)                    # that are there now, and in the copy's own step

The copy of a parameter is whole at first, and that of a module plain. Then `fully_shard` is called
for the same modules again, inner ones first, so that its own hooks gather and reduce in the copy
what they do in the model. Fake tensors wait for no rank (fake_meter.py).

When a forward begins, a hook has gathered the parameters of the outermost modules. What
`fully_shard` makes in a first forward alone the copy has already: its step is like all later ones,
and so is the first one of the model (internals/sharding.py).
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from reprise.base.errors import RepriseError
from reprise.torch.internals.sharding import (
    PACKAGE,
    PUBLIC,
    has_plain_shard,
    params_of,
    sharded_kind,
    states_of,
)

# Under which modules hold what `fully_shard` knows of them.
_STATE = "__composable_api_state_key"
# How it communicates, unless the program has other ways.
_WAYS = ("_all_gather_comm", "_reduce_scatter_comm")
_DEFAULT = ("DefaultAllGather", "DefaultReduceScatter")


def of_sharding(hook: Callable[..., Any]) -> bool:
    """Returns whether a hook is one of `fully_shard`."""
    return str(getattr(hook, "__module__", "")).startswith(PACKAGE)


def is_state(attribute: str) -> bool:
    """Returns whether an attribute of a module is what `fully_shard` knows of it."""
    return attribute.startswith(_STATE)


def is_sharded(model: nn.Module) -> bool:
    """Returns whether a part of the model is sharded."""
    return bool(states_of(model))


def gathered_bytes(model: nn.Module) -> int:
    """Returns the bytes of parameters that are gathered now."""
    return sum(
        output.untyped_storage().nbytes()
        for state in states_of(model)
        for param in params_of(state)
        for output in param.all_gather_outputs
    )


def refuse_unknown(model: nn.Module) -> None:
    """Raises RepriseError if a part of the model is sharded in a way that is not copied."""
    mine = set(model.modules())
    for state in states_of(model):
        groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
        if len(groups) > 1:
            raise RepriseError("fully_shard divides parameters of one group over several meshes")
        if any(type(module).__mro__[1] is not sharded_kind() for module in state._modules):
            raise RepriseError("modules are sharded by a variant of fully_shard")
        if not mine.issuperset(state._modules):
            raise RepriseError("fully_shard groups modules with some that are not of the model")
        for group in filter(None, groups):
            ways = [getattr(group, name, None) for name in _WAYS]
            own = [way for way in ways if way and type(way).__name__ not in _DEFAULT]
            if own or getattr(group, "_all_reduce_hook", None):
                raise RepriseError("the program communicates in fully_shard in a way of its own")
            if type(group.offload_policy).__name__ != "OffloadPolicy":
                raise RepriseError("fully_shard offloads parameters")
        for param in params_of(state):
            if param.is_dtensor or not has_plain_shard(param):
                raise RepriseError("parameters are sharded by more than fully_shard")


def copy_parameters(model: nn.Module, memo: dict[int, Any], device: str) -> None:
    """Adds copies of sharded parameters, whole, to what `copy.deepcopy` has copied."""
    for state in states_of(model):
        for param in params_of(state):
            own = param.sharded_param
            whole = torch.empty(own.shape, dtype=own.dtype, device=device)
            memo[id(own)] = made = nn.Parameter(whole, own.requires_grad)
            memo[id(getattr(param, "_unsharded_param", own))] = made


def copy_modules(model: nn.Module, memo: dict[int, Any]) -> None:
    """Adds copies of sharded modules, plain, to what `copy.deepcopy` has copied."""
    modules = [module for state in states_of(model) for module in state._modules]
    for module in modules:
        kind: Any = type(module).__mro__[2]  # after its own class with FSDPModule, and that
        memo[id(module)] = kind.__new__(kind)
    for module in modules:
        own = {name: value for name, value in vars(module).items() if not is_state(name)}
        hooks = {name: value for name, value in vars(nn.Module()).items() if "hooks" in name}
        vars(memo[id(module)]).update(copy.deepcopy({**own, **hooks}, memo))


def shard_copies(model: nn.Module, memo: dict[int, Any]) -> None:
    """Shards the copies as the modules are."""
    made: dict[int, Any] = {}
    states = states_of(model)
    meshes = [s._fsdp_param_group.mesh_info.mesh for s in states if s._fsdp_param_group]
    for state in states:
        made[id(state)] = new = _shard(state, memo, meshes[-1])
        group = state._fsdp_param_group
        for name, value in {} if group is None else vars(group).items():
            if type(value) in (bool, int, float) and not name.startswith("_"):
                setattr(new._fsdp_param_group, name, value)
    for state in states:
        for name in ("_states_to_forward_prefetch", "_states_to_backward_prefetch"):
            others = [made[id(other)] for other in getattr(state, name, ()) if id(other) in made]
            setattr(made[id(state)], name, others)
    for state in reversed(states):
        made[id(state)]._lazy_init()
    for state in states:
        first: Any = memo[id(state._modules[0])]
        first.unshard()
        first.reshard()


def _shard(state: Any, memo: dict[int, Any], mesh: Any) -> Any:
    """Calls `fully_shard` for the copies of the modules of a state, and returns the new state.
    `mesh`: that of modules without parameters."""
    copies = [memo[id(module)] for module in state._modules]
    placed = {memo[id(param.sharded_param)]: param.fsdp_placement for param in params_of(state)}
    group = state._fsdp_param_group
    how: Any = None
    if group is not None and not state._auto_reshard_after_forward:
        after = group.post_forward_mesh_info
        how = after is not None and (after is group.mesh_info or after.shard_mesh_size)
    sys.modules[PUBLIC].fully_shard(
        copies if len(copies) > 1 else copies[0],
        mesh=mesh if group is None else group.mesh_info.mesh,
        reshard_after_forward=how,
        shard_placement_fn=placed.get,
        mp_policy=state._mp_policy,
        ignored_params={p for one in copies for p in one.parameters() if p not in placed},
    )
    return copies[0]._get_fsdp_state()
