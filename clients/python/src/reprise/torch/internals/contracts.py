# SPDX-License-Identifier: Apache-2.0
"""The names of torch that Reprise uses and that a release may not have, and what is lost without.

    empty = HOST_CACHE.get()      # None: this torch does not have it
    lost()                        # what this torch lacks, one sentence each
    missing()                     # the names that nothing replaces

A name is looked for when it is asked for, whatever the release is called. docs/install.md has the
same table, and no other private name of torch is used: test_contracts.py compares both.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Contract:
    """One name of torch, with its module, and what is lost where it is missing. `since`: the first
    release that has it; "" if the oldest tested one has it. `probe`: how it is found if it is no
    attribute of a module."""

    name: str
    without: str
    since: str = ""
    cuda: bool = False  # only builds for CUDA have it
    probe: Callable[[], bool] | None = None

    def get(self) -> Any:
        """Returns what has this name, in a module that is loaded; None if nothing has."""
        module, _, name = self.name.rpartition(".")
        return getattr(sys.modules.get(module), name, None)

    def there(self) -> bool:
        """Returns whether this torch has it. A module that is not loaded is read, not imported:
        that of Inductor takes seconds."""
        if self.probe is not None:
            return self.probe()
        module, _, name = self.name.rpartition(".")
        if module in sys.modules:
            return hasattr(sys.modules[module], name)
        file = Path(torch.__file__).parent.joinpath(*module.split(".")[1:]).with_suffix(".py")
        return file.is_file() and re.search(rf"\b{name}\b", file.read_text("utf-8")) is not None


def _isolates() -> bool:
    return "isolate_recompiles" in inspect.signature(torch.compile).parameters


OOM_OBSERVER = Contract(
    "torch._C._cuda_attach_out_of_memory_observer",
    "errors of the allocator that the program handles itself are not noticed",
    cuda=True,
)
PRECISION = Contract(
    "torch._C._get_fp32_precision_getter",
    "ops that run again take two settings for the precision of float32, not one per backend",
    since="2.9",
)
HOST_CACHE = Contract(
    "torch._C._host_emptyCache",
    "pinned memory of the first steps in host memory is not given back",
    cuda=True,
)
ALLOCATOR_SETTINGS = Contract(
    "torch._C._accelerator_getAllocatorSettings",
    "expandable segments are known only where an environment variable sets them",
    since="2.12",
)
STORAGE_USERS = Contract(
    "torch._C._storage_Use_Count",
    "the state of optimizers does not leave for host memory",
)
FAKE_WORK = Contract(
    "torch._C._distributed_c10d.FakeWork",
    "the first steps of models that fully_shard has sharded run plainly",
)
SET_EVAL_FRAME = Contract(
    "torch._dynamo.eval_frame.set_eval_frame",
    "compiled functions that an eager model calls are not noticed",
)
JOINT_PASS = Contract(
    "torch._functorch.config.joint_custom_pass",
    "of compiled models only those of Inductor are planned",
    since="2.10",
)
INDUCTOR_PASS = Contract(
    "torch._inductor.config.joint_custom_post_pass",
    "plans of compiled models are made before Inductor rewrites the graph, and tags may be lost",
)
GRAPH_CSE = Contract(
    "torch._functorch.compile_utils.fx_graph_cse",
    "plans of compiled models count equal ops, which Inductor makes one of, as several",
)
ISOLATES = Contract(
    "torch.compile(isolate_recompiles=)",
    "models whose blocks are compiled one by one train without a plan",
    since="2.13",
    probe=_isolates,
)

CONTRACTS = tuple(found for found in tuple(globals().values()) if isinstance(found, Contract))

# Nothing takes the place of these.
_NEEDED = """
_C.DisableTorchFunction _C.DispatchKey _C._AutoDispatchBelowAutograd _C._DisableAutocast
_C._DisableTorchDispatch _C._ForceDispatchKeyGuard _C._InferenceMode _C._autograd
_C._current_autograd_node _C._current_graph_task_id _C._dispatch_keys
_C._dispatch_tls_is_dispatch_key_excluded _C._dispatch_tls_local_exclude_set
_C._dispatch_tls_local_include_set _C._dispatch_tls_set_dispatch_key_excluded
_C._functorch.peek_interpreter_stack _C._get_function_stack_at _C._len_torch_dispatch_stack
_C._len_torch_function_stack _C._parse_dispatch_key _C._pop_torch_function_stack
_C._push_on_torch_function_stack _C._set_grad_enabled _foreach_copy_
_inductor.custom_graph_pass.CustomGraphPass _ops.OpOverload _ops._higher_order_ops
_subclasses.fake_tensor.FakeTensor _subclasses.fake_tensor.FakeTensorMode
autograd._engine_run_backward autograd.graph.disable_saved_tensors_hooks
cuda.get_per_process_memory_fraction jit._trace.is_tracing
utils._python_dispatch.TorchDispatchMode utils._python_dispatch._disable_current_modes
utils._python_dispatch._get_current_dispatch_mode_stack utils._python_dispatch._pop_mode
utils._python_dispatch._push_mode
utils._python_dispatch.is_traceable_wrapper_subclass utils._pytree.tree_iter
utils._pytree.tree_leaves utils._pytree.tree_map utils.checkpoint.CheckpointPolicy
"""
NEEDED = tuple(f"torch.{name}" for name in _NEEDED.split())


@cache
def lost() -> tuple[str, ...]:
    """Returns what this torch lacks, and what is lost without each."""
    here = [c for c in CONTRACTS if torch.version.cuda is not None or not c.cuda]
    return tuple(f"{c.name}: {c.without}" for c in here if not c.there())


@cache
def missing() -> str:
    """Returns the names that this torch lacks and that nothing replaces, as a sentence; "" if it
    has them all."""
    names = [name for name in NEEDED if not Contract(name, "").there()]
    return f"torch {torch.__version__} has no {', '.join(names)}" if names else ""
