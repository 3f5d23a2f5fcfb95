# SPDX-License-Identifier: Apache-2.0
"""The agent of this process: what the job reports, and the plan it gets back.

    agent = Agent.start(socket=daemon.ensure().socket)
    graph = agent.submit_graph(step_graph_json, budget="0.5x", capabilities="tape")
    reply = agent.wait_plan(graph, have=0, timeout_s=30)
    if reply.kind == "plan": ...

Never in the way of training: with no library, no collector, or in a forked
child every call returns at once and does nothing (`status == "inert"`, `why`
says the reason). Safe to call from one thread at a time.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from reprise.agent import abi, daemon
from reprise.agent.launched import shared_run_id, uuid7_of
from reprise.agent.received import Plan
from reprise.base.errors import RepriseError

# Ctrl-C is seen between slices: the C call returns PENDING on a signal.
WAIT_SLICE_S = 0.2
# A daemon that does not answer for so long is not only being started again.
GONE_S = 3.0

Status = Literal["ok", "degraded", "inert"]


@dataclass(frozen=True, slots=True)
class PlanReply:
    """What came back for a graph.

    plan     `plan` is set: another one than the caller had.
    pending  nothing new yet.
    refused  none will come; `why` says so in a sentence. For an impossible
             budget `smallest_budget` is the smallest one not ruled out.
    inert    no collector is running: train on without a plan.
    """

    kind: Literal["plan", "pending", "refused", "inert"]
    plan: Plan | None = None
    why: str = ""
    smallest_budget: int | None = None


class Agent:
    """The process-wide agent. `start` again returns the same session."""

    _live: ClassVar[Agent | None] = None

    def __init__(self, library: abi.Library | None, why: str, run_id: str) -> None:
        self._why = why
        self._socket: Path | None = None
        self.run_id = run_id
        self._filled = _Filled()
        self._addresses: dict[str, int] = {}  # of functions; a library is never unloaded
        self._bind(library or abi.NOTHING)

    def _bind(self, library: abi.Library) -> None:
        """Takes a library, and its own functions for calls that are made in every step or op,
        without one of ours in between (marks.py)."""
        self._library = library
        self.op_begin, self.op_end, self.at = library.op_begin, library.op_end, library.at
        # Marks the start of a step; also reads commands and reconnects when due.
        self.step: Callable[[int], object] = library.quick.reprise_step
        # Reports the graph and the plan that the step which has begun runs under; then `at(1 + op)`
        # says where it is.
        self.step_under: Callable[[int, int], object] = library.quick.reprise_step_under
        # Reports that a phase begins: 1 forward, 2 backward, 3 optimizer, 0 between steps.
        self.phase: Callable[[int], object] = library.quick.reprise_phase
        # Returns what the open window traces; 0 if none is open. The collector may open one too, so
        # ask once a step.
        self.window_kinds: Callable[[], int] = library.quick.reprise_window_kinds

    @classmethod
    def start(
        cls,
        run_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        *,
        socket: Path | str | None = None,
        sink: str | None = None,
        ring_slots: int = 0,
    ) -> Agent:
        """Loads the library and connects (at most about a second). Never raises for a
        missing collector or library: the agent is then inert and `why` tells."""
        run = run_id or own_run_id()
        try:
            library = abi.load()
        except RepriseError as error:
            return cls(None, str(error), run)
        text = "".join(f"{_line(k)}={_line(v)}\n" for k, v in (labels or {}).items())
        config = abi.Config(
            abi=abi.ABI,
            ring_slots=ring_slots,
            socket_path=os.fsencode(socket) if socket else None,
            sink_path=sink.encode() if sink else None,
            run_id=run.encode(),
            labels=text.encode() if text else None,
        )
        code = int(library.blocking.reprise_start(ctypes.byref(config)))
        if code < 0:
            return cls(None, f"{library.path}: {_CODES.get(code, code)}", run)
        made = cls(library, "", run)
        made._socket = Path(socket) if socket else None
        cls._live = made
        return made

    @classmethod
    def connect(
        cls, labels: Mapping[str, str], run_id: str | None = None
    ) -> tuple[daemon.Collector, Agent]:
        """Returns the daemon beside this process, started where there is none, and an agent of it.

        A private daemon ends some time after its last job: one that still answered may be gone when
        the agent connects. Then another one is started."""
        for _ in range(3):
            collector = daemon.ensure()
            agent = cls.start(run_id, labels, socket=collector.socket)
            if collector.socket is None or agent.status != "inert" or not agent.loaded:
                break
            agent.stop()
        return collector, agent

    @classmethod
    def live(cls) -> Agent | None:
        """Returns the agent whose session is open in this process; None if there is none."""
        return cls._live

    @property
    def loaded(self) -> bool:
        """Whether the library is here. If so, an inert agent lacks only a collector."""
        return self._library is not abi.NOTHING

    @property
    def status(self) -> Status:
        """ "ok", "degraded" (some capability is missing) or "inert" (nothing is recorded)."""
        return _STATUS.get(self._quickly("reprise_capabilities", self._filled.caps), "inert")

    @property
    def why(self) -> str:
        """The reason for a status other than "ok", in one sentence."""
        return self._why or self.capabilities().why.decode("utf-8", "replace")

    # ---- Records -------------------------------------------------------------

    def address(self, name: str) -> int:
        """Address of a function of the agent, for native code that calls it by itself; 0: no
        agent."""
        if not self.loaded:
            return 0
        if name not in self._addresses:
            function = getattr(self._library.quick, name)
            self._addresses[name] = ctypes.cast(function, ctypes.c_void_p).value or 0
        return self._addresses[name]

    def intern(self, text: str) -> int:
        """Returns the id of a text, which is the same every time; 0 if the table is full."""
        data = text.encode("utf-8", "replace")
        return self._quickly("reprise_intern", data, len(data))

    def alloc(self, ptr: int, bytes: int, what: int) -> None:
        """Reports an event of the host's allocator now (`abi.ALLOC` ...). A negative number of
        `bytes` frees."""
        self._quickly("reprise_alloc", ptr, bytes, -1, 0, what, 0)

    def step_done(
        self,
        step: int,
        *,
        step_ns: int,
        peak_bytes: int,
        plan_id: int = 0,
        flags: int = 0,
        recomputed: int = 0,
        mismatches: int = 0,
    ) -> None:
        """Reports a finished step; `flags` are `abi.STEP_*`. Survives a SIGKILL right after."""
        report = self._filled.report
        report.flags, report.step, report.plan_id = flags, step, plan_id
        report.step_ns, report.peak_bytes = step_ns, peak_bytes
        report.recomputed, report.mismatches = recomputed, mismatches
        self._quickly("reprise_step_done", report)

    def verify(
        self,
        step: int,
        *,
        plan_id: int,
        checked: int,
        differing: int,
        flags: int,
        first_name: int = 0,
    ) -> None:
        """Reports a gradient check; `flags` is one of `abi.VERIFY_*`."""
        report = abi.VerifyReport(
            flags=flags,
            step=step,
            plan_id=plan_id,
            checked=checked,
            differing=differing,
            first_name=first_name,
        )
        self._quickly("reprise_verify", ctypes.byref(report))

    def oom(self, device: int, asked: int = 0, total: int = 0, free_bytes: int = 0) -> None:
        """Reports that memory ran out; `device` -1 is the host's. Zero: not known."""
        self._quickly("reprise_oom", device, asked, total, free_bytes)

    def snapshot(self, moment: bytes) -> None:
        """Sends what is in memory: proto3 JSON of reprise.v1.Moment."""
        self._library.blocking.reprise_snapshot(moment, len(moment))

    def flush(self, timeout_s: float = 1.0) -> bool:
        """Waits until the collector has read what was pushed, at most that long. Returns whether it
        has."""
        code = self._library.blocking.reprise_flush(max(0, int(timeout_s * 1000)))
        return int(code) == abi.OK

    @property
    def is_answered(self) -> bool:
        """Whether a collector listens at the socket that this agent was given."""
        return self._socket is None or daemon.answers(self._socket)

    # ---- The plan ------------------------------------------------------------

    def submit_graph(
        self,
        json: bytes,
        budget: str,
        capabilities: str,
        static_bytes: int,
        device_bytes: int = 0,
        device_free_bytes: int = 0,
        reserve_bytes: int = 0,
        replaces: int = 0,
        more_bytes: int = 0,
    ) -> int | None:
        """Sends a step graph (proto3 JSON) and asks for a plan. Returns the id of the request,
        which `poll_plan` and `wait_plan` take, or None when no collector is running.
        `RepriseError`: the agent refuses the graph.

        A budget of "90%" needs `device_bytes`, the size of the device; "fit" needs
        `device_free_bytes`, what is free of it and what the job holds. `reserve_bytes` are held
        back inside the budget for what the graph does not show. `replaces` is the id of a plan
        that turned out to need `more_bytes` more than it says: the answer stands in its place."""
        want = abi.Want(
            budget=budget.encode(),
            capabilities=capabilities.encode(),
            static_bytes=static_bytes,
            device_bytes=device_bytes,
            device_free_bytes=device_free_bytes,
            reserve_bytes=reserve_bytes,
            request_id=next(_requests),
            replaces=replaces,
            more_bytes=more_bytes,
        )
        graph = ctypes.c_uint64(0)
        code = int(
            self._library.blocking.reprise_graph_submit(
                json, len(json), ctypes.byref(want), ctypes.byref(graph)
            )
        )
        if code == abi.INERT:
            return None
        if code < 0:
            raise RepriseError(f"step graph of {len(json)} bytes: {_CODES.get(code, code)}")
        return int(want.request_id)

    def poll_plan(self, request_id: int, have: int = 0) -> PlanReply:
        """Returns what there is for a request: a plan other than `have`, a refusal, or "pending".
        Never waits."""
        view = self._filled.view
        return self._reply(self._library.quick.reprise_plan_poll(request_id, have, view), view)

    def wait_plan(self, request_id: int, have: int = 0, timeout_s: float = 60.0) -> PlanReply:
        """Returns the plan as `poll_plan` does, after waiting up to `timeout_s`. Ctrl-C works."""
        answered = time.monotonic()
        deadline = answered + timeout_s
        while True:
            left = deadline - time.monotonic()
            milliseconds = max(0, int(min(left, WAIT_SLICE_S) * 1000))
            view = abi.PlanView()
            code = int(
                self._library.blocking.reprise_plan_wait(
                    request_id, have, milliseconds, ctypes.byref(view)
                )
            )
            reply = self._reply(code, view)
            if reply.kind != "pending" or left <= 0:
                return reply
            now = time.monotonic()
            if self.is_answered:
                answered = now
            elif self._socket is not None and now - answered > GONE_S:
                return PlanReply("pending", why=daemon.why_gone(self._socket))

    def plan_applied(self, plan_id: int, own_ns: int, peak_bytes: int) -> None:
        """Steps run under it from now on: what the executor needs for itself per step, and the
        peak as it runs the plan."""
        self._quickly("reprise_plan_applied", plan_id, own_ns, peak_bytes)

    def plan_state(self, plan_id: int, state: int, why: str = "") -> None:
        """Tells what became of a plan, or (plan 0) of the job: `abi.PLAN_REFUSED`, `PLAN_STOPPED`,
        `PLAN_UNCHECKED`, `PLAN_LEFT`, `PLAN_OTHER_LOAD`, `PLAN_NONE`, `JOB_FAILED`."""
        self._quickly("reprise_plan_state", plan_id, state, self.intern(why) if why else 0)

    # ---- Session -------------------------------------------------------------

    def capabilities(self) -> abi.Caps:
        """Returns what the agent can see here, and what it has lost so far."""
        caps = abi.Caps()
        self._quickly("reprise_capabilities", caps)
        return caps

    def window_begin(self, kinds: int = 0) -> None:
        """Opens a window by hand: `abi.KIND_*`, 0 for everything."""
        self._quickly("reprise_window_begin", kinds)

    def window_end(self) -> None:
        """Closes the recording window that `window_begin` opened."""
        self._quickly("reprise_window_end")

    def stop(self) -> None:
        """Drains (at most about a second) and closes the session."""
        if self.loaded:
            # What kept it from ever having a session is still the reason afterwards.
            trouble = self.why if self.status == "inert" else ""
            self._library.blocking.reprise_stop()
            self._bind(abi.NOTHING)
            Agent._live = None
            self._why = trouble or "the session was stopped"

    def _quickly(self, name: str, *arguments: object) -> int:
        """Returns the result of a call that never blocks; 0 if it has none."""
        return int(getattr(self._library.quick, name)(*arguments) or 0)

    def _reply(self, code: int, view: abi.PlanView) -> PlanReply:
        if code == abi.PENDING:
            return _PENDING
        why = view.why.decode("utf-8", "replace")
        if code == abi.OK:
            try:
                text = ctypes.string_at(view.json, view.json_bytes) if view.json else b""
            finally:
                self._library.quick.reprise_plan_release(ctypes.byref(view))
            return PlanReply("plan", plan=Plan.from_json(text))
        if code == abi.INERT:
            return PlanReply("inert", why=why or self.why)
        if code == abi.EREFUSED:
            return PlanReply("refused", why=why, smallest_budget=int(view.predicted_peak) or None)
        return PlanReply("refused", why=why or f"{_CODES.get(code, code)}")


class _Filled(threading.local):
    """What every step fills or has filled: to make one takes longer than the agent's answer. Each
    thread has its own, because models may be trained side by side."""

    def __init__(self) -> None:
        self.report, self.caps, self.view = abi.StepReport(), abi.Caps(), abi.PlanView()


_PENDING = PlanReply("pending")


# Ids of requests, of this process.
_requests = itertools.count(1)

_STATUS: dict[int, Status] = {abi.OK: "ok", abi.DEGRADED: "degraded"}

_CODES = {
    abi.EINVAL: "the agent rejected an argument",
    abi.EABI: "the agent has a different ABI version",
    abi.ETOOBIG: "larger than the agent accepts (64 MiB)",
    abi.EREFUSED: "refused",
}


def _line(text: str) -> str:
    """Labels are lines of key=value: a line break inside one would start another."""
    return text.replace("\r", " ").replace("\n", " ").replace("\0", " ")


def own_run_id() -> str:
    """Returns the id of the run that this process reports to if nobody says otherwise: that of
    `reprise run`, else the one that the ranks of one launcher share, else a new one."""
    return os.environ.get("REPRISE_RUN_ID") or shared_run_id() or uuid7()


def uuid7() -> str:
    """Returns a new UUID version 7, which sorts by the time it was made."""
    return uuid7_of(time.time_ns() // 1_000_000, secrets.randbits(80))
