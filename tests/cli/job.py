# SPDX-License-Identifier: Apache-2.0
"""A job that speaks to the collector through the real agent, without a framework.

job.py quit CODE        never attaches, exits with CODE
job.py print            prints what `reprise run` put into its environment
job.py plain STEPS      attaches and reports steps
job.py planned          submits the small graph, runs three steps under its plan
job.py leaves           the same, and leaves the plan in a fourth step, and says how
job.py takes            the same, with a plan, as a job that takes another one while it runs
job.py sleep            attaches, prints "ready", waits for a signal and exits with 7
job.py steps            attaches, prints "ready", takes steps until SIGTERM; records memory in
                        the steps that somebody asked for
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from cli_program import small_graph

from reprise.agent import abi
from reprise.agent.agent import Agent


def proto3_json() -> bytes:
    """The small graph as an agent submits it: proto3 JSON of reprise.v1.StepGraph."""
    graph = small_graph()
    return json.dumps(
        {
            "name": graph["name"],
            "staticBytes": str(graph["static_bytes"]),
            "storages": [{"id": s["id"], "bytes": str(s["bytes"])} for s in graph["storages"]],
            "ops": [
                {
                    "id": op["id"],
                    "name": op["name"],
                    "phase": f"PHASE_{op['phase'].upper()}",
                    "kind": f"OP_KIND_{op['kind'].upper()}",
                    "timeNs": str(op["time_ns"]),
                    "workspaceBytes": str(op["workspace_bytes"]),
                    "reads": op["reads"],
                    "writes": op["writes"],
                }
                for op in graph["ops"]
            ],
            "required": graph["required"],
            "measuredPeakBytes": "1374",
            "measuredStepNs": "96",
        }
    ).encode()


def planned(agent: Agent, leaves: bool = False) -> None:
    for step in range(2):
        agent.step_done(step, step_ns=96, peak_bytes=1374)
    graph_id = agent.submit_graph(
        proto3_json(), os.environ["REPRISE_BUDGET"], "tape", static_bytes=1000
    )
    assert graph_id is not None
    reply = agent.wait_plan(graph_id, timeout_s=30)
    if reply.plan is None:
        print(reply.why, file=sys.stderr)
        return
    plan_id = int(reply.plan.plan_id, 16)
    agent.plan_state(plan_id, abi.PLAN_APPLIED)
    for step in range(2, 5):
        agent.step(step)
        agent.step_done(step, step_ns=101, peak_bytes=1324, plan_id=plan_id, flags=abi.STEP_PLANNED)
    agent.verify(4, plan_id=plan_id, checked=1, differing=0, flags=abi.VERIFY_BITWISE)
    if leaves:
        agent.plan_state(plan_id, abi.PLAN_LEFT, "op 1 is aten.sin.default, captured was aten.cos")
        flags = abi.STEP_PLANNED | abi.STEP_KEPT_ALL
        agent.step_done(5, step_ns=96, peak_bytes=1324, plan_id=plan_id, flags=flags, mismatches=1)


def steps(agent: Agent) -> None:
    """Steps of 5 ms; 1,000,000 bytes are there, a step takes 4096 more and gives them back."""
    ended = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    step = 0
    while not ended:
        step += 1
        agent.step(step)
        traced = agent.window_kinds() != 0
        if traced:
            agent.alloc(0, 1_000_000, abi.BASELINE)
            agent.alloc(0x1000, 4096, abi.ALLOC)
        time.sleep(0.005)
        if traced:
            agent.alloc(0x1000, -4096, abi.FREE)
        flags = abi.STEP_WINDOW if traced else 0
        agent.step_done(step, step_ns=5_000_000, peak_bytes=1_004_096, flags=flags)
        if step == 1:
            print("ready", flush=True)


def main(argv: list[str]) -> int:
    what = argv[1]
    if what == "quit":
        return int(argv[2])
    if what == "print":
        names = ("REPRISE_RUN_ID", "REPRISE_BUDGET", "REPRISE_NAME", "REPRISE_SOCKET")
        print(json.dumps({name: os.environ.get(name) for name in names}))
        return 0
    agent = Agent.start(labels={"apply": "yes"} if what == "takes" else {})
    assert agent.status in ("ok", "degraded"), agent.why
    if what == "plain":
        for step in range(int(argv[2])):
            agent.step(step)
            agent.step_done(step, step_ns=1_000_000, peak_bytes=1 << 20)
    elif what in ("planned", "leaves"):
        planned(agent, what == "leaves")
    elif what == "takes":
        graph_id = agent.submit_graph(proto3_json(), "1x", "tape", static_bytes=1000)
        assert graph_id is not None
        reply = agent.wait_plan(graph_id, timeout_s=30)
        assert reply.plan is not None, reply.why
        agent.plan_state(int(reply.plan.plan_id, 16), abi.PLAN_APPLIED)
        agent.flush()
        steps(agent)
    elif what == "steps":
        steps(agent)
    elif what == "sleep":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        print("ready", flush=True)
        signal.pause()
    agent.flush()
    agent.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
