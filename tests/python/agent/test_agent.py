# SPDX-License-Identifier: Apache-2.0
"""The agent from Python: without a library, into a file, and across forks."""

import ctypes.util
import json
import re
import signal
import subprocess
import sys
import uuid

import pytest

from reprise.agent.agent import Agent, uuid7

MISSING = "/nowhere/libreprise_agent.so"


# ---- Without an agent -------------------------------------------------------


@pytest.fixture
def inert(monkeypatch):
    monkeypatch.setenv("REPRISE_AGENT", MISSING)
    return Agent.start()


def test_without_the_library_the_agent_is_inert_and_says_why(inert):
    assert inert.status == "inert"
    assert "not found" in inert.why
    assert MISSING in inert.why


def test_an_inert_agent_does_nothing_at_every_call(inert):
    inert.step(1)
    inert.op_begin(1)
    inert.op_end(1)
    inert.alloc(1, 1, 0)
    inert.step_done(1, step_ns=1, peak_bytes=1)
    inert.verify(1, plan_id=1, checked=1, differing=0, flags=1)
    inert.plan_state(1, 1, "why")
    inert.flush()

    assert inert.submit_graph(b"{}", "0.5x", "tape", 0) is None
    assert inert.poll_plan(1).kind == "inert"
    assert inert.wait_plan(1, timeout_s=0).kind == "inert"
    assert (inert.intern("x"), inert.window_kinds(), inert.address("reprise_alloc")) == (0, 0, 0)
    inert.stop()


def test_a_library_that_is_not_the_agent_is_refused_in_one_sentence(monkeypatch, tmp_path):
    other = tmp_path / "other.so"
    subprocess.run(["cc", "-shared", "-x", "c", "/dev/null", "-o", other], check=True)
    monkeypatch.setenv("REPRISE_AGENT", str(other))

    assert re.search(
        r"other\.so: has no reprise_\w+; it is not this version's agent", Agent.start().why
    )


def test_run_ids_are_uuids_of_version_7_and_sort_by_time():
    first, second = uuid.UUID(uuid7()), uuid.UUID(uuid7())

    assert (first.version, first.variant) == (7, uuid.RFC_4122)
    assert first.int >> 80 <= second.int >> 80


def test_the_run_id_of_the_environment_is_kept(inert, monkeypatch):
    monkeypatch.setenv("REPRISE_RUN_ID", "my-run")

    assert Agent.start().run_id == "my-run"
    assert Agent.start(run_id="other").run_id == "other"


# ---- The real agent, in a process of its own --------------------------------


@pytest.fixture
def script(python, agent_library):
    def run(code, *arguments):
        done = python("-c", code, *map(str, arguments), REPRISE_AGENT=str(agent_library))
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_without_a_collector_the_real_agent_is_inert(script, home):
    code = (
        "from reprise.agent.agent import Agent\n"
        f"a = Agent.start(socket='{home}/nobody.sock')\n"
        "print(a.status, '|', a.why)\n"
        "print(a.submit_graph(b'{}', '0.5x', 'tape', 0), a.poll_plan(1).kind)"
    )

    first, second = script(code).splitlines()

    assert re.match(r"inert \| .+", first)
    assert second == "None inert"


BESIDE_GRPC = """
import ctypes, os, sys
from reprise.agent.agent import Agent

sink, first, protobuf, grpc, grpcpp = sys.argv[1:]

def others():
    for name in (protobuf, grpc, grpcpp):
        library = ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        if name == grpc:
            library.grpc_init()  # its threads live from here on

if first == "grpc":
    others()
agent = Agent.start(sink=f"file:{sink}")
if first == "agent":
    others()
name = agent.intern("op")
for turn in range(20):
    agent.op_begin(turn, name)
    child = os.fork()
    if child == 0:
        agent.op_begin(1000 + turn, name)  # inert: leaves no record
        agent.op_end(1000 + turn)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    agent.op_end(turn)
agent.stop()
print(len(os.listdir("/proc/self/task")) > 1)
"""


@pytest.mark.parametrize("first", ["grpc", "agent"])
def test_grpc_and_protobuf_in_the_process_disturb_nothing_in_either_order(
    script, tmp_path, read_sink, first
):
    names = [ctypes.util.find_library(name) for name in ("protobuf", "grpc", "grpc++")]
    if None in names:
        pytest.skip("libprotobuf, libgrpc or libgrpc++ is not on this machine")

    out = script(BESIDE_GRPC, tmp_path / "sink", first, *names)

    assert out.strip() == "True"  # there were threads of gRPC's to fork beside
    sink = read_sink(tmp_path / "sink")
    assert [kind for kind in sink.kinds if kind in (6, 7)] == [6, 7] * 20
    assert sink.clean_end


STOPPED = """
import socket, sys
from reprise.agent.agent import Agent
# Accepts, and never answers: a daemon that is stopped.
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(sys.argv[1])
listener.listen()
agent = Agent.start(socket=sys.argv[1])
agent.stop()
print(agent.why)
"""


def test_the_reason_for_a_missing_session_is_known_after_the_end(script, tmp_path):
    path = tmp_path / "agent.sock"

    assert script(STOPPED, path).strip() == f"the collector at {path} has not answered yet"


RECORDS = """
import sys
from reprise.agent import abi
from reprise.agent.agent import Agent
a = Agent.start(run_id="r", labels={"model": "x\\ny=z"}, sink="file:" + sys.argv[1])
name = a.intern("aten.relu.default")
assert name and a.intern("aten.relu.default") == name
a.step(1)
a.op_begin(7, name)
a.alloc(4096, 100, abi.ALLOC)
a.op_end(7)
a.alloc(4096, -100, abi.FREE)
a.step_done(1, step_ns=5, peak_bytes=100, flags=abi.STEP_PLANNED, plan_id=9)
a.verify(1, plan_id=9, checked=3, differing=0, flags=abi.VERIFY_BITWISE)
a.plan_state(9, abi.PLAN_APPLIED)
a.window_begin(abi.KIND_ALLOCS)
print(a.window_kinds(), end=" ")
a.window_end()
print(a.window_kinds(), a.capabilities().dropped)
a.stop()
print(a.status, a.why)
"""


def test_records_arrive_in_order_in_the_file(script, tmp_path, read_sink):
    out = script(RECORDS, tmp_path / "sink")

    sink = read_sink(tmp_path / "sink")
    # step, op begin, alloc, op end, free, step done and its memory, verify, plan state; clock
    # records may stand between them.
    clock = 10
    assert [k for k in sink.kinds if k != clock] == [9, 6, 8, 7, 8, 13, 14, 15, 16]
    assert sink.allocs == [(4096, 100, 0), (4096, -100, 1)]
    assert sink.sequences == list(range(1, len(sink.sequences) + 1))
    assert sink.clean_end
    assert out.splitlines() == ["2 0 0", "inert the session was stopped"]


# Ids are whole or refused.
MARKS = """
import sys
from reprise.agent.agent import Agent
a = Agent.start(run_id="r", sink="file:" + sys.argv[1])
begin, end, at = a.op_begin, a.op_end, a.at
print(type(begin).__name__, end=" ")
begin(2**64 - 1, 2**32 - 1, 2**32 - 2, 2**63 + 1, -2**63, 2**64 - 2)
end(2**64 - 1)
begin(2**32 + 5)
end(2**32 + 5)
refused = []
for call, arguments in (
    (begin, (2**64 + 5,)), (begin, (-1,)), (begin, (1, 2**32)), (begin, (1, 0, 2**32 + 5)),
    (begin, (1, 0, 0, 2**64)), (begin, (1, 0, 0, 0, 2**63)), (begin, (1, 0, 0, 0, 0, 2**64)),
    (begin, (1.5,)), (begin, ("1",)), (begin, ()), (begin, (1,) * 7), (end, (2**64 + 5,)),
    (end, (-1,)), (end, (None,)), (at, (2**64,)), (at, (-1,)), (at, (None,)),
):
    try:
        call(*arguments)
    except (OverflowError, TypeError) as error:
        refused.append(type(error).__name__[0])
    else:
        refused.append(".")
print("".join(refused))
a.stop()
begin(1), end(1)
"""


def test_op_ids_are_never_truncated(script, tmp_path, read_sink):
    out = script(MARKS, tmp_path / "sink")

    sink = read_sink(tmp_path / "sink")
    whole = 2**64 - 1, 2**63 + 1, -(2**63), 2**64 - 2, 2**32 - 1, 2**32 - 2
    assert sink.begun == [whole, (2**32 + 5, 0, -1, 0, 0, 0)]
    assert sink.ended == [2**64 - 1, 2**32 + 5]
    assert out.split() == ["builtin_function_or_method", "OOOOOOOTTTTOOTOOT"]


def test_a_mark_of_an_op_leaves_no_reference_behind(script, tmp_path):
    code = (
        "import sys\n"
        "from reprise.agent.agent import Agent\n"
        f"a = Agent.start(sink='file:{tmp_path / 'sink'}')\n"
        "number = 2**40\n"
        "before = sys.getrefcount(number), sys.getrefcount(None)\n"
        "for _ in range(10000): a.op_begin(number), a.op_end(number)\n"
        "after = sys.getrefcount(number), sys.getrefcount(None)\n"
        "print(*(abs(b - a) < 100 for a, b in zip(before, after)))"
    )

    assert script(code).split() == ["True", "True"]


PAUSE = """
import ctypes, os
import reprise
from reprise.agent import abi
from reprise.agent.agent import Agent
a = Agent.start(sink="file:/dev/null")
a.window_begin(abi.KIND_KERNELS)
cupti = ctypes.CDLL(os.environ["REPRISE_CUPTI_PATH"])
other = ctypes.c_void_p()
def subscribes():  # as torch.profiler does
    code = cupti.cuptiSubscribe(ctypes.byref(other), None, None)
    if code == 0: cupti.cuptiUnsubscribe(other)
    return code
print(subscribes(), end=" ")
try:
    with reprise.pause():
        print(subscribes(), a.window_kinds(), end=" ")
        raise KeyError
except KeyError:
    print(subscribes(), a.window_kinds())
"""


def test_inside_a_pause_another_profiler_can_run(script, agent_library, monkeypatch):
    build = agent_library.parent.parent
    fake = build / "lib/libfake_cupti_130.so"
    assert fake.is_file(), f"{fake}: not built; run scripts/build --tests"
    monkeypatch.setenv("REPRISE_CUPTI_PATH", str(fake))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(build / "fake_cuda"))

    # 39 is MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED.
    assert script(PAUSE).split() == ["39", "0", "0", "39", "4"]


LOADER = """
import json, sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from reprise.agent import abi
from reprise.agent.agent import Agent
from reprise.torch.meter.meter import ProbeMeter

STEPS = 24
sink = None if sys.argv[1] == "-" else "file:" + sys.argv[1]
socket = sys.argv[2] if len(sys.argv) > 2 else None
agent = Agent.start(sink=sink, socket=socket, run_id="fork-test")
meter = ProbeMeter()
meter.start(0)
meter.events_begin(agent)
data = TensorDataset(torch.randn(STEPS * 8, 16), torch.randint(0, 4, (STEPS * 8,)))
loader = DataLoader(data, batch_size=8, num_workers=4, multiprocessing_context="fork")
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = 0
for epoch in range(2):
    for x, y in loader:
        step += 1
        agent.step(step)
        agent.op_begin(step, agent.intern("train"))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        agent.op_end(step)
        agent.step_done(step, step_ns=1000, peak_bytes=meter.peak())
        if sink is None:
            agent.flush(5)
meter.events_end()
agent.flush(10)
caps = agent.capabilities()
agent.stop()
print(json.dumps({"steps": step, "pushed": caps.pushed, "dropped": caps.dropped}))
"""


@pytest.mark.long
def test_a_loader_with_four_forked_workers_trains_to_the_end_and_loses_no_record(
    script, tmp_path, read_sink
):
    pytest.importorskip("torch")

    done = json.loads(script(LOADER, tmp_path / "sink").splitlines()[-1])

    sink = read_sink(tmp_path / "sink")
    assert (done["steps"], done["dropped"]) == (48, 0)
    assert sink.sequences == list(range(1, done["pushed"] + 1))
    assert sink.kinds.count(9) == sink.kinds.count(13) == 48
    # A worker that had not fallen silent would have a file of its own.
    assert [p.name for p in tmp_path.iterdir()] == ["sink"]


# ---- The plan ---------------------------------------------------------------

SUBMIT = """
import sys
from reprise.agent.agent import Agent
from reprise.base.errors import RepriseError
a = Agent.start(socket=sys.argv[1])
request = a.submit_graph(b'{"ops": []}', "0.5x", "tape:seeded_ok=1", static_bytes=10)
try:
    print("waiting", request, flush=True)
    reply = a.wait_plan(request, timeout_s=float(sys.argv[2]))
    print(reply.kind, "|", reply.why, "|", reply.smallest_budget)
    if reply.plan: print(reply.plan.sentence, a.wait_plan(request, reply.plan.plan_number, 0).kind)
except RepriseError as error:
    print("refused here:", error)
except KeyboardInterrupt:
    print("interrupted")
"""


def submit(script, collector, answer, timeout_s=60):
    asked = collector(answer)
    first, *rest = script(SUBMIT, asked.path, timeout_s).splitlines()
    assert first == "waiting 1"  # the first request of the process
    assert len(asked.graphs) == 1
    return rest


def test_a_plan_is_delivered_once(script, collector):
    plan = {
        "planId": "00000000000000ff",
        "graphId": "0123456789abcdef",
        "feasible": True,
        "schedule": [0],
        "sentence": "It fits.",
    }

    assert submit(script, collector, json.dumps(plan).encode()) == [
        "plan |  | None",
        "It fits. pending",
    ]


def test_a_refusal_brings_its_sentence_and_the_smallest_budget(script, collector):
    sentence = "Nothing fits in 3.0 GiB: op 17 aten.bmm.default needs at least 3.4 GiB."

    assert submit(script, collector, (sentence, 3650722201)) == [
        f"refused | {sentence} | 3650722201"
    ]


def test_a_hostile_plan_is_an_error_that_names_the_field(script, collector):
    assert submit(script, collector, b'{"planId": "../../etc"}') == [
        "refused here: plan.plan_id: must be 16 lower-case hex digits, got '../../etc'"
    ]


def test_without_an_answer_the_wait_ends_at_its_deadline(script, collector):
    assert submit(script, collector, None, timeout_s=0.3) == ["pending |  | None"]


def test_ctrl_c_ends_the_wait_for_a_plan(agent_library, collector, monkeypatch):
    monkeypatch.setenv("REPRISE_AGENT", str(agent_library))
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    job = subprocess.Popen(
        [sys.executable, "-c", SUBMIT, str(collector(None).path), "300"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert job.stdout is not None
    assert job.stdout.readline().startswith("waiting")

    job.send_signal(signal.SIGINT)

    assert job.communicate(timeout=60)[0] == "interrupted\n"


def test_a_file_sink_hands_out_no_plan(script, tmp_path):
    code = (
        "import sys\n"
        "from reprise.agent.agent import Agent\n"
        "a = Agent.start(sink='file:' + sys.argv[1])\n"
        "print(a.submit_graph(b'{}', '0.5x', 'tape', 0), a.poll_plan(1).kind)"
    )

    assert script(code, tmp_path / "sink") == "None inert\n"


def test_a_graph_above_the_limit_is_refused_in_one_sentence(script, tmp_path):
    code = (
        "import sys\n"
        "from reprise.agent.agent import Agent\n"
        "from reprise.base.errors import RepriseError\n"
        "a = Agent.start(sink='file:' + sys.argv[1])\n"
        "try: a.submit_graph(b' ' * ((64 << 20) + 1), '0.5x', 'tape', 0)\n"
        "except RepriseError as e: print(e)\n"
    )

    assert "67108865 bytes: larger than the agent accepts (64 MiB)" in script(code, tmp_path / "s")


# ---- With the real daemon ---------------------------------------------------


@pytest.mark.long
def test_a_loader_with_four_forked_workers_loses_no_record_on_the_way_to_the_daemon(
    script, reprised, until
):
    pytest.importorskip("torch")
    daemon = reprised()

    done = json.loads(script(LOADER, "-", daemon.socket).splitlines()[-1])

    def run():
        return daemon.query("GetRun", {"runId": "fork-test"})

    until(lambda: run()["state"] == "RUN_STATE_FINISHED")
    found = run()
    assert (done["steps"], done["dropped"]) == (48, 0)
    # A step's report is two records in the ring and one report in the store.
    assert int(found["records"]) + 2 * 48 == done["pushed"]
    assert int(found.get("dropped", 0)) == int(found.get("lostChunks", 0)) == 0
    assert int(found["steps"]) == 48
    # The workers are no sessions of their own.
    assert len(daemon.query("ListRuns", {})["runs"]) == 1
