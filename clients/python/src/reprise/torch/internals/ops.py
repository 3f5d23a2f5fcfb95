# SPDX-License-Identifier: Apache-2.0
"""What Reprise knows about single operators: which ones it ignores, what they write, and whether
they may run again.

Everything is derived from the schema and the tags of the overload; the tables below hold the
exceptions. An unknown overload is `once`: it never runs again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from reprise.torch.internals.nondeterministic import adds_in_any_order

# Any other type is a subclass that handles its calls itself; the calls inside are seen.
PLAIN_TYPES = frozenset({Tensor, torch.nn.Parameter})


class OpKind(IntEnum):
    """What may be done with an op; the numbers are those of `reprise.v1.OpKind`."""

    PURE = 1
    SEEDED = 2
    ONCE = 3
    COLLECTIVE = 4
    VIEW = 5


def overloads(*names: str) -> frozenset[Any]:
    """Returns those of the named overloads ("aten.detach.default") that exist in this torch."""
    found = set()
    for name in names:
        space, packet, overload = name.split(".")
        try:
            found.add(getattr(getattr(getattr(torch.ops, space), packet), overload))
        except (AttributeError, RuntimeError):
            continue
    return frozenset(found)


# The attribute of a fake tensor, which torch reads several times for each op.
DEVICE = torch.ops.prim.device.default

# These occur a different number of times with saved-tensor hooks than without, so they are neither
# counted nor planned. They make no storage.
IGNORED = overloads(
    "aten.detach.default",
    "aten.alias.default",
    "prim.device.default",
    "prim.layout.default",
    "profiler._record_function_enter_new.default",
    "profiler._record_function_enter.default",
    "profiler._record_function_exit._RecordFunction",
    "profiler._record_function_exit.default",
)

# Batch norms that update their running statistics: positions of the two statistics and of the flag
# that says whether this call updates them. Only the last one declares that in its schema. A replay
# without statistics computes the same bits and updates nothing twice.
_STATISTICS: dict[Any, tuple[int, int, int]] = dict.fromkeys(
    overloads(
        "aten.native_batch_norm.default",
        "aten.cudnn_batch_norm.default",
        "aten.miopen_batch_norm.default",
        "aten._native_batch_norm_legit.default",
    ),
    (3, 4, 5),
)
# Rejects a call without statistics. `native_batch_norm` accepts it and computes the same bits.
_STATISTICS_REQUIRED = overloads("aten._native_batch_norm_legit.default")

# Arguments that are written although the schema does not say so: running statistics, the random
# state of dropout. A call that writes something from before the step is `once`.
_UNSAID: dict[Any, tuple[int, ...]] = (
    dict.fromkeys(
        overloads(
            "aten.batch_norm_gather_stats.default",
            "aten.batch_norm_gather_stats.out",
            "aten.batch_norm_gather_stats_with_counts.default",
            "aten.batch_norm_gather_stats_with_counts.out",
        ),
        (3, 4),
    )
    | dict.fromkeys(
        overloads("aten.batch_norm_update_stats.default", "aten.batch_norm_update_stats.out"),
        (1, 2),
    )
    | dict.fromkeys(overloads("aten._cudnn_rnn.default", "aten._cudnn_rnn.out"), (15,))
    | dict.fromkeys(overloads("aten.miopen_rnn.default", "aten.miopen_rnn.out"), (13,))
)

# Outputs that only the kernel's own backward reads, and that the kernel writes only partly: the
# workspace of oneDNN's recurrent layers, the reserved space of cuDNN's and MIOpen's.
_PARTLY_WRITTEN: dict[Any, frozenset[int]] = (
    dict.fromkeys(overloads("aten.mkldnn_rnn_layer.default"), frozenset({3}))
    | dict.fromkeys(overloads("aten._cudnn_rnn.default"), frozenset({3}))
    | dict.fromkeys(overloads("aten.miopen_rnn.default"), frozenset({3}))
)

_ONLY_ALLOCATE = overloads(
    "aten.empty.memory_format",
    "aten.empty_like.default",
    "aten.empty_strided.default",
    "aten.empty_permuted.default",
    "aten.new_empty.default",
    "aten.new_empty_strided.default",
)

# Batch norms of the CPU, and the argument that says whether they compute statistics.
_TRAINS: dict[Any, int] = dict.fromkeys(
    overloads("aten.native_batch_norm.default", "aten._native_batch_norm_legit.default"), 5
) | dict.fromkeys(overloads("aten._native_batch_norm_legit.no_stats"), 3)

# These are tagged as random, but draw no random numbers if the dropout probability is 0.
_DROPOUT_POSITION: dict[Any, int] = dict.fromkeys(
    overloads(
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        "aten._scaled_dot_product_flash_attention.default",
    ),
    3,
)

# Tagged as if output sizes depended on the data, which is true only for masks.
_INDEXING = overloads("aten.index.Tensor")

_NAMESPACES = frozenset({"aten", "prims", "torchvision"})
_COLLECTIVES = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd"})

# Fills storages with the values that they had when they were emptied: FSDP2 gathers parameters. The
# operator is known only once FSDP2 has been imported.
_FILLS = frozenset({"fsdp.split_with_sizes_copy.default"})

# Collectives that write nothing, and those that gather.
_SENDS = frozenset({"c10d.send.default", "c10d.barrier.default", "c10d.monitored_barrier_.default"})
_GATHERS = frozenset(
    {
        "c10d.allgather_.default",
        "c10d._allgather_base_.default",
        "c10d.allgather_into_tensor_coalesced_.default",
    }
)

_mutated: dict[Any, tuple[int | str, ...]] = {}
_unsteady: set[Any] = set()


def mutated_positions(func: Any) -> tuple[int | str, ...]:
    """Returns the arguments that are written: positions, and the names of keyword-only ones. Takes
    them from the schema, and from `_UNSAID` where the schema says nothing. Filling a
    gathered parameter is no write: it has the same values each time."""
    known = _mutated.get(func)
    if known is None:
        found: list[int | str] = [*_UNSAID.get(func, ())]
        # A higher-order operator has no schema. It calls functions and writes nothing itself.
        schema = None if str(func) in _FILLS else getattr(func, "_schema", None)
        for position, argument in enumerate(schema.arguments if schema is not None else ()):
            if argument.alias_info is not None and argument.alias_info.is_write:
                found.append(argument.name if argument.kwarg_only else position)
        known = _mutated[func] = tuple(found)
    return known


def may_write(func: Any) -> bool:
    """Returns whether a call of this operator may write an argument: as its schema says, or running
    statistics (`hidden_writes`)."""
    return bool(mutated_positions(func)) or func in _STATISTICS


def filled_by(func: Any, kwargs: dict[str, Any]) -> list[Tensor]:
    """Returns the gathered parameters that this call fills."""
    return list(tensors_in(kwargs.get("out"))) if str(func) in _FILLS else []


def written_by(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Returns the tensors that a call writes in place according to its schema."""
    written = [
        kwargs.get(at) if isinstance(at, str) else args[at] if at < len(args) else None
        for at in mutated_positions(func)
    ]
    return list(tensors_in(*written))


def all_written_by(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Returns the same tensors, and the running statistics that the call updates."""
    return [*written_by(func, args, kwargs), *hidden_writes(func, args)]


def collected_by(func: Any, args: tuple[Any, ...]) -> list[Tensor]:
    """Returns the tensors that a collective writes. Those of `c10d` do not say so in their schema:
    what they write, or send, is their first argument."""
    if getattr(func, "namespace", "") != "c10d" or str(func) in _SENDS:
        return []
    return list(tensors_in(*args[:1]))


def is_collective(func: Any) -> bool:
    """Returns whether an operator talks to other ranks, or waits for them."""
    return str(getattr(func, "namespace", "")) in _COLLECTIVES


def gathers(func: Any) -> bool:
    """Returns whether a collective gives all ranks what each of them has."""
    return str(func) in _GATHERS


def hidden_writes(func: Any, args: tuple[Any, ...]) -> tuple[Tensor, ...]:
    """Returns the statistics that this call updates and that a replay of it does not."""
    at = _STATISTICS.get(func)
    if at is None or not args[at[2]]:
        return ()
    return tuple(args[i] for i in at[:2] if isinstance(args[i], Tensor))


def trains_at(func: Any) -> int:
    """Returns the position of the argument that says whether a CPU batch norm computes statistics;
    -1 for every other op."""
    return _TRAINS.get(func, -1)


def statistics_of(func: Any) -> tuple[int, Any]:
    """Returns the position of a batch norm's running statistics among its arguments (-1 if it is
    none), and the overload that computes the same without them, if that is another one."""
    at = _STATISTICS.get(func)
    if at is None:
        return -1, None
    plain = torch.ops.aten.native_batch_norm.default
    return at[0], plain if func in _STATISTICS_REQUIRED else None


def without_statistics(func: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """Returns function and arguments for a replay of a call that has `hidden_writes`: the outputs
    are the same, no statistics are updated."""
    at = _STATISTICS[func]
    replayed = list(args)
    replayed[at[0]] = replayed[at[1]] = None
    if func in _STATISTICS_REQUIRED:
        func = torch.ops.aten.native_batch_norm.default
    return func, tuple(replayed)


def only_allocates(func: Any) -> bool:
    """Returns whether an op leaves its output uninitialized, so that its bytes differ from run to
    run."""
    return func in _ONLY_ALLOCATE


def partly_written(func: Any) -> frozenset[int]:
    """Returns the positions of the outputs that contain bytes which no kernel writes, and which
    differ from run to run."""
    return _PARTLY_WRITTEN.get(func, frozenset())


def is_of_pytorch(func: Any) -> bool:
    """Returns whether an operator is one of PyTorch's own, whose schema says what it writes."""
    return str(getattr(func, "namespace", "")) in _NAMESPACES


def chooses_rows(func: Any, args: tuple[Any, ...]) -> bool:
    """Returns whether the sizes of the outputs depend on the data in the inputs."""
    if not any(tag.name == "dynamic_output_shape" for tag in getattr(func, "tags", ())):
        return False
    masks = (torch.bool, torch.uint8)
    return func not in _INDEXING or any(t.dtype in masks for t in tensors_in(args[1]))


def never_again(funcs: Iterable[Any]) -> None:
    """Makes these operators `once` from the next capture on, because their bits differ from run to
    run."""
    _unsteady.update(funcs)


def first_kind(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpKind:
    """Returns the kind of a call as far as the overload tells. The capture may lower it to VIEW or
    ONCE."""
    space = str(getattr(func, "namespace", ""))
    if space in _COLLECTIVES:
        return OpKind.COLLECTIVE
    if space not in _NAMESPACES or func in _unsteady:
        return OpKind.ONCE
    tags = {tag.name for tag in func.tags}
    if tags & {"data_dependent_output", "nondeterministic_bitwise"} or chooses_rows(func, args):
        return OpKind.ONCE
    if adds_in_any_order(func, args, kwargs):
        return OpKind.ONCE
    if "nondeterministic_seeded" in tags:
        position = _DROPOUT_POSITION.get(func)
        if position is not None:
            drop = args[position] if len(args) > position else kwargs.get("dropout_p", 0.0)
            if drop == 0.0:
                return OpKind.PURE
        # We must not rewind a generator that the program has made.
        generators = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Generator)]
        return OpKind.ONCE if generators else OpKind.SEEDED
    return OpKind.PURE


def tensors_in(*values: Any) -> Iterator[Tensor]:
    """Yields the tensors among arguments or outputs, in order, including those in lists, tuples and
    dicts."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(*value)
        elif isinstance(value, dict):
            yield from tensors_in(*value.values())


def outputs_in(value: Any) -> Iterator[Tensor]:
    """Yields the tensors that a model returns, including those in fields of data classes and in
    distributions."""
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from outputs_in(one)
    elif isinstance(value, dict):
        yield from outputs_in(list(value.values()))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from outputs_in([getattr(value, f.name, None) for f in dataclasses.fields(value)])
    elif isinstance(value, torch.distributions.Distribution):
        yield from outputs_in(list(vars(value).values()))
    elif isinstance(value, Tensor):
        yield value
