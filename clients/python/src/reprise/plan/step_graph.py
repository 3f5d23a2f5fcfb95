# SPDX-License-Identifier: Apache-2.0
"""One training step as the planner sees it, built op by op.

    graph = StepGraph("mlp", static_bytes=4_000_000)
    x, h = graph.storage(4096, "x"), graph.storage(8192, "h")
    graph.op("load", writes=[x], time_ns=900, kind="once")
    graph.op("linear", reads=[x], writes=[h], time_ns=52_000)
    graph.require(h)

What the fields mean is in docs/formats.md (`reprise.graph/1`). `check` refuses what the planner
would refuse, by the path of the field (`ops[17].reads[2]: there is no storage 99`); whatever sends
a graph calls it first.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any, NoReturn, SupportsIndex

from reprise.base.errors import RepriseError

FORMAT = "reprise.graph/1"
# The fields of a graph beside its lists.
TEXTS = ("name", "source", "note", "flavour")
SIZES = ("static_bytes", "measured_peak_bytes", "measured_step_ns")
# By field: the words that it takes.
WORDS = {
    "phase": ("forward", "backward", "optimizer"),
    "kind": ("pure", "seeded", "once", "collective", "view"),
    "category": (
        *("parameter", "gradient", "optimizer_state", "activation", "input", "temporary"),
        *("communication", "unknown"),
    ),
}

MOST_OPS = 4_000_000
MOST_SUM = 1 << 62
Whole = SupportsIndex


@dataclass(slots=True)
class Storage:
    """One allocation of the step. Static memory is not listed."""

    bytes: int
    name: str = ""
    category: str = "unknown"
    saved_for_backward: bool = False
    # The program holds it until this op has run; None: until its last reader.
    release_op: int | None = None
    # Never made again.
    pinned: bool = False


@dataclass(slots=True)
class Op:
    """One call of the framework, in base order."""

    name: str
    reads: list[int] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)
    mutates: list[int] = field(default_factory=list)
    time_ns: int = 0
    workspace_bytes: int = 0
    phase: str = "forward"
    kind: str = "pure"
    module: str = ""
    # Time of a re-run; 0: as that of the first run.
    again_ns: int = 0
    # Generator state that is kept if a seeded op runs again.
    state_bytes: int = 0
    # Whether the executor can run ops again right before this one.
    replay_point: bool = True
    # First and last op of each stretch before whose ops it may run again; empty: anywhere.
    replay_windows: list[int] = field(default_factory=list)


class StepGraph:
    """Ops and storages of one step. Positions are ids: `storage` and `op` return them."""

    def __init__(
        self,
        name: str = "",
        *,
        static_bytes: Whole = 0,
        flavour: str = "",
        source: str = "",
        note: str = "",
        measured_peak_bytes: Whole = 0,
        measured_step_ns: Whole = 0,
    ) -> None:
        """`static_bytes`: what is resident during the whole step, as parameters. The measured
        figures are those of a step without a plan, 0 where unknown; what the graph does not
        explain of the measured peak is held back inside every budget."""
        self.name = name
        self.static_bytes = _whole(static_bytes, "static_bytes")
        self.flavour = flavour
        self.source = source
        self.note = note
        self.measured_peak_bytes = _whole(measured_peak_bytes, "measured_peak_bytes")
        self.measured_step_ns = _whole(measured_step_ns, "measured_step_ns")
        self.storages: list[Storage] = []
        self.ops: list[Op] = []
        self.required: list[int] = []

    # ---- Building --------------------------------------------------------------

    def storage(
        self,
        bytes: Whole,
        name: str = "",
        *,
        category: str = "unknown",
        saved_for_backward: bool = False,
        release_op: Whole | None = None,
        pinned: bool = False,
    ) -> int:
        """Adds a storage and returns its id. Its one writer is the op that names it in `writes`."""
        where = f"storages[{len(self.storages)}]"
        release = None if release_op is None else _whole(release_op, f"{where}.release_op")
        made = Storage(
            _whole(bytes, f"{where}.bytes"), name, category, saved_for_backward, release, pinned
        )
        self.storages.append(made)
        return len(self.storages) - 1

    def op(
        self,
        name: str,
        reads: Iterable[Whole] = (),
        writes: Iterable[Whole] = (),
        *,
        time_ns: Whole,
        mutates: Iterable[Whole] = (),
        workspace_bytes: Whole = 0,
        phase: str = "forward",
        kind: str = "pure",
        module: str = "",
        again_ns: Whole = 0,
        state_bytes: Whole = 0,
        replay_point: bool = True,
        replay_windows: Iterable[Whole] = (),
    ) -> int:
        """Adds the next op in base order and returns its id. What it mutates it reads too, also
        where `reads` does not say so. `replay_point=False`: the executor cannot run ops again
        right before it. `replay_windows`: the op may run again only right before an op of these
        stretches, each given by its first and its last op; if it is empty, anywhere."""
        where = f"ops[{len(self.ops)}]"
        changed = _ids(mutates, f"{where}.mutates")
        read = _ids(reads, f"{where}.reads")
        made = Op(
            name,
            read + [s for s in dict.fromkeys(changed) if s not in read],
            _ids(writes, f"{where}.writes"),
            changed,
            _whole(time_ns, f"{where}.time_ns"),
            _whole(workspace_bytes, f"{where}.workspace_bytes"),
            phase,
            kind,
            module,
            _whole(again_ns, f"{where}.again_ns"),
            _whole(state_bytes, f"{where}.state_bytes"),
            replay_point,
            _ids(replay_windows, f"{where}.replay_windows"),
        )
        self.ops.append(made)
        return len(self.ops) - 1

    def require(self, *storages: Whole) -> None:
        """What must be present, at its last version, when the step is over: loss, gradients."""
        for storage in storages:
            where = f"required[{len(self.required)}]"
            self.required.append(_whole(storage, where))

    # ---- Checking --------------------------------------------------------------

    def check(self) -> None:
        """Raises `RepriseError` with the path of the first field that the planner would refuse."""
        if len(self.ops) > MOST_OPS or len(self.storages) > MOST_OPS:
            _refuse("ops", f"at most {MOST_OPS} ops and storages are planned")
        for key in TEXTS:
            _check_text(getattr(self, key), key)
        for key in SIZES:
            _check_size(getattr(self, key), key)
        for s, storage in enumerate(self.storages):
            _check_fields(storage, f"storages[{s}]")
        writer = self._check_ops()
        taken = [self.static_bytes, max((op.workspace_bytes for op in self.ops), default=0)]
        taken += [storage.bytes for storage in self.storages] + [op.state_bytes for op in self.ops]
        if sum(taken) > MOST_SUM:
            _refuse("storages", "their bytes sum to more than 2^62")
        if sum(max(op.time_ns, op.again_ns) for op in self.ops) > MOST_SUM:
            _refuse("ops", "their time_ns sum to more than 2^62")
        for s, storage in enumerate(self.storages):
            if s not in writer:
                _refuse(f"storages[{s}]", "no op writes it")
            release = storage.release_op
            if release is not None and not writer[s] <= release < len(self.ops):
                _refuse(
                    f"storages[{s}].release_op",
                    f"op {release} is not between its writer {writer[s]} and the last op",
                )
        self._check_list(self.required, "required")

    def _check_ops(self) -> dict[int, int]:
        """Returns the op that writes each storage."""
        writer: dict[int, int] = {}
        for o, op in enumerate(self.ops):
            where = f"ops[{o}]"
            _check_fields(op, where)
            self._check_windows(op.replay_windows, f"{where}.replay_windows")
            self._check_list(op.reads, f"{where}.reads")
            for i, s in enumerate(op.reads):
                if s not in writer:
                    _refuse(f"{where}.reads[{i}]", f"storage {s} is not written by an earlier op")
            self._check_list(op.mutates, f"{where}.mutates")
            for i, s in enumerate(op.mutates):
                if s not in op.reads:
                    _refuse(f"{where}.mutates[{i}]", f"storage {s} is not in the reads of this op")
            self._check_list(op.writes, f"{where}.writes")
            for i, s in enumerate(op.writes):
                if s in writer:
                    _refuse(
                        f"{where}.writes[{i}]", f"storage {s} is already written by op {writer[s]}"
                    )
                writer[s] = o
        return writer

    def _check_windows(self, windows: list[int], where: str) -> None:
        """Checks pairs of a first and a last op, ascending and without overlap."""
        if len(windows) % 2:
            _refuse(where, f"must be pairs of a first and a last op, got {len(windows)} numbers")
        after = -1
        for first, last in zip(windows[::2], windows[1::2], strict=True):
            if not after < first <= last < len(self.ops):
                _refuse(
                    where,
                    f"ops {first} to {last} are not a stretch of this graph's ops, after the one "
                    "before",
                )
            after = last

    def _check_list(self, ids: list[int], where: str) -> None:
        """Ids in range, none of them twice."""
        if not isinstance(ids, list):
            _refuse(where, f"must be a list of storages, got {ids!r}")
        seen: set[int] = set()
        for i, s in enumerate(ids):
            _check_size(s, f"{where}[{i}]")
            if s >= len(self.storages):
                _refuse(
                    f"{where}[{i}]", f"there is no storage {s}, the graph has {len(self.storages)}"
                )
            if s in seen:
                _refuse(f"{where}[{i}]", f"names storage {s} twice")
            seen.add(s)

    # ---- Files -----------------------------------------------------------------

    def to_json(self) -> str:
        """Returns the graph as a `reprise.graph/1` file, checked; `reprise plan FILE` reads it."""
        import json

        return json.dumps({"format": FORMAT, **self.to_object()}, separators=(",", ":"))

    def to_object(self) -> dict[str, Any]:
        """Returns the graph as JSON has it, checked."""
        self.check()
        root = filled(self, (*TEXTS, *SIZES[1:]))
        root["static_bytes"] = self.static_bytes
        root["required"] = self.required
        root["storages"] = [_storage_json(s, made) for s, made in enumerate(self.storages)]
        root["ops"] = [_op_json(o, made) for o, made in enumerate(self.ops)]
        return root

    @classmethod
    def from_json(cls, text: bytes | str) -> StepGraph:
        """Reads a `reprise.graph/1` file and checks it; keys that are not known are ignored."""
        import json

        if not isinstance(text, (str, bytes, bytearray)):
            raise RepriseError(f"graph: must be the text of a file, got {type(text).__name__}")
        try:
            root = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise RepriseError(f"graph: not JSON ({str(error)[:80]})") from None
        if not isinstance(root, dict) or root.get("format") != FORMAT:
            raise RepriseError(f"graph: must be an object of format {FORMAT}")
        made = cls(**{key: root[key] for key in (*TEXTS, *SIZES) if key in root})
        for s, item in enumerate(_objects(root, "storages")):
            made.storage(item.get("bytes", ""), **_some(item, _STORAGE_KEYS, f"storages[{s}]", s))
        for o, item in enumerate(_objects(root, "ops")):
            made.op(item.get("name", ""), **_some(item, _OP_KEYS, f"ops[{o}]", o))
        made.require(*_ids(root.get("required", ()), "required"))
        made.check()
        return made

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> StepGraph:
        """Returns the graph of a proto3 JSON message of reprise.v1.StepGraph, its keys named as in
        the proto. Names of storages and tensors are left out."""
        made = cls(message.get("name", ""), static_bytes=message["static_bytes"])
        for item in message["storages"]:
            release, pinned = item.get("release_op"), item.get("pinned", False)
            made.storage(item["bytes"], release_op=release, pinned=pinned)
        for item in message["ops"]:
            words = {
                "phase": item["phase"].removeprefix("PHASE_").lower(),
                "kind": item["kind"].removeprefix("OP_KIND_").lower(),
            }
            made.op(item["name"], **{**_some(item, _OP_KEYS, "ops", item["id"]), **words})
        made.require(*message["required"])
        return made


# Of single values, by their class: names and types.
_TYPES = {
    of: tuple((one.name, one.type) for one in fields(of) if one.type != "list[int]")
    for of in (Storage, Op)
}
# Of a file, beside `bytes` and `name`.
_STORAGE_KEYS = tuple(one.name for one in fields(Storage)[1:])
_OP_KEYS = tuple(one.name for one in fields(Op)[1:])


def _objects(root: dict[str, Any], key: str) -> list[dict[str, Any]]:
    items = root.get(key)
    if not isinstance(items, list):
        _refuse(key, "must be a list of objects")
    for i, item in enumerate(items):
        if not isinstance(item, dict):
            _refuse(f"{key}[{i}]", f"must be an object, got {item!r}"[:120])
    return items


def _some(item: dict[str, Any], keys: tuple[str, ...], where: str, position: int) -> dict[str, Any]:
    if item.get("id", position) != position:
        _refuse(f"{where}.id", f"must be {position}, its position, got {item['id']!r}")
    if "time_ns" in keys and "time_ns" not in item:
        _refuse(f"{where}.time_ns", "is missing")
    return {key: item[key] for key in keys if key in item}


def _storage_json(s: int, made: Storage) -> dict[str, Any]:
    item = {"id": s, "bytes": made.bytes, "category": made.category}
    item |= filled(made, ("name", "saved_for_backward"))
    if made.release_op is not None:  # op 0, too
        item["release_op"] = made.release_op
    return item | filled(made, ("pinned",))


def _op_json(o: int, made: Op) -> dict[str, Any]:
    always = ("name", "phase", "kind", "time_ns", "workspace_bytes", "reads", "writes", "mutates")
    item = {"id": o, **{key: getattr(made, key) for key in always}}
    item |= filled(made, ("module", "again_ns", "state_bytes", "replay_windows"))
    return item if made.replay_point else {**item, "replay_point": False}


def filled(made: Any, keys: tuple[str, ...] = ()) -> dict[str, Any]:
    """Returns the attributes with these names, else all fields, that are neither zero nor empty."""
    names = keys or (one.name for one in fields(made))
    return {key: value for key in names if (value := getattr(made, key))}


# ---- Single fields ------------------------------------------------------------


def _refuse(where: str, fact: str) -> NoReturn:
    raise RepriseError(f"{where}: {fact}")


def _whole(value: object, where: str) -> int:
    """Any integer type as int: numpy's too, no bool and no float."""
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        return operator.index(value)
    _refuse(where, f"must be an integer, got {value!r}"[:120])


def _ids(values: Iterable[Whole], where: str) -> list[int]:
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        _refuse(where, f"must be a list of storages, got {values!r}"[:120])
    return [_whole(value, f"{where}[{i}]") for i, value in enumerate(values)]


def _check_size(value: object, where: str) -> None:
    if type(value) is not int:
        _refuse(where, f"must be an integer, got {value!r}"[:120])
    if value < 0:
        _refuse(where, f"must not be negative, got {value}")
    if value >= MOST_SUM:
        _refuse(where, "must be less than 2^62")


def _check_text(value: object, where: str) -> None:
    if not isinstance(value, str):
        _refuse(where, f"must be text, got {value!r}"[:120])
    try:
        value.encode()
    except UnicodeEncodeError:
        _refuse(where, "is not valid Unicode")


def _check_fields(made: Storage | Op, where: str) -> None:
    """Checks texts, words, flags and sizes. What a list names depends on the graph."""
    for name, kind in _TYPES[type(made)]:
        value = getattr(made, name)
        if name in WORDS:
            if value not in WORDS[name]:
                known = ", ".join(WORDS[name])
                _refuse(f"{where}.{name}", f"must be one of {known}, got {value!r}"[:200])
        elif kind == "str":
            _check_text(value, f"{where}.{name}")
        elif kind == "bool":
            if not isinstance(value, bool):
                _refuse(f"{where}.{name}", f"must be True or False, got {value!r}")
        elif value is not None or kind == "int":
            _check_size(value, f"{where}.{name}")
