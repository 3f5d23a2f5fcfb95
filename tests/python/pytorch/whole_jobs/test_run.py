# SPDX-License-Identifier: Apache-2.0
"""`reprise run -- python train.py`: a program that knows nothing of Reprise trains under a plan."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from reprise.base.units import format_bytes
from reprise.torch.session import attach

pytestmark = pytest.mark.e2e

LOOP = """
import sys, torch
from torch import nn
torch.manual_seed(0); torch.set_num_threads(1)
def mlp(): return nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128), nn.Dropout(.1))
model = nn.Sequential(*[mlp() for _ in range(6)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(12):
    optimizer.zero_grad()
    loss = model(torch.randn(256, 128)).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
"""

# The plain step needs some 150 MiB, and the process may have 100 more than after its imports.
HUNGRY = """
import resource, sys, torch, torch._dynamo
from torch import nn
torch.manual_seed(0); torch.set_num_threads(1)
if sys.argv[1] == "limited":
    status = open("/proc/self/status").read()
    used = int(status.split("VmData:")[1].split()[0]) << 10
    resource.setrlimit(resource.RLIMIT_DATA, (used + (100 << 20), resource.RLIM_INFINITY))
layers = [m for _ in range(36) for m in (nn.Linear(32, 32), nn.Tanh())]
model = nn.Sequential(*layers, nn.Dropout(0.1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(20):
    optimizer.zero_grad()
    loss = model(torch.randn(32768, 32)).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
"""

# The last layer's backward needs 60 MiB at once, when 70 are still saved: the forward fits.
BACKWARD = """
import resource, sys, torch, torch._dynamo
from torch import nn
torch.manual_seed(0); torch.set_num_threads(1)
limited, catches = sys.argv[1] == "limited", sys.argv[2] == "catches"
class Wide(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x.cos() * torch.empty(32768, 480).fill_(1.0)[:, :32]
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[m for _ in range(16) for m in (nn.Linear(32, 32), nn.Tanh())])
        self.last = nn.Dropout(0.1)
    def forward(self, x):
        return self.last(Wide.apply(self.layers(x)))
model = Model()
if catches:  # told of its forwards: none is run twice
    model.last.register_forward_hook(lambda m, i, o: None)
if limited:
    status = open("/proc/self/status").read()
    used = int(status.split("VmData:")[1].split()[0]) << 10
    # The plain step needs 140 MiB and does not fit. A planned one of 96 does. Threads, Python, we
    # and the holes of malloc take some 20 more, by machine and by run: the limit is in the middle.
    resource.setrlimit(resource.RLIMIT_DATA, (used + (134 << 20), resource.RLIM_INFINITY))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
done = 0
for attempt in range(11):
    torch.manual_seed(done)
    try:
        optimizer.zero_grad()
        loss = model(torch.randn(32768, 32)).square().mean()
        loss.backward()
        optimizer.step()
    except RuntimeError as error:
        if not catches or "can't allocate" not in str(error): raise
        loss = None
        continue
    print(loss.item().hex())
    done += 1
    if done == 8: break
"""

HOOKED = BACKWARD.replace("if catches:", "if True:")

TRAINER = """
import json, os, sys
os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel
from transformers import Trainer, TrainingArguments
torch.set_num_threads(1); torch.manual_seed(0)
size = dict(vocab_size=128)
if sys.argv[1] == "gpt2":
    model = GPT2LMHeadModel(GPT2Config(n_positions=64, n_embd=64, n_layer=3, n_head=4, **size))
else:
    model = BertForMaskedLM(BertConfig(hidden_size=64, num_hidden_layers=3, num_attention_heads=4,
                                       intermediate_size=256, max_position_embeddings=64, **size))
g = torch.Generator().manual_seed(1)
rows = [torch.randint(0, 128, (64,), generator=g) for _ in range(256)]
args = TrainingArguments(output_dir=sys.argv[2], max_steps=14, per_device_train_batch_size=8,
    logging_steps=1, report_to=[], save_strategy="no", use_cpu=True, seed=3, disable_tqdm=True)
trainer = Trainer(model=model, args=args,
                  train_dataset=[{"input_ids": r, "labels": r} for r in rows])
trainer.train()
for entry in trainer.state.log_history:
    if "loss" in entry: print(float(entry["loss"]).hex())
"""


@pytest.fixture
def job(
    home: Path, root: Path, agent_library: Path, daemon_binary: Path, tmp_path: Path
) -> Callable[..., tuple[list[str], str]]:
    """Runs a script, plainly or under `reprise run`; returns its losses and standard error."""
    command = daemon_binary.with_name("reprise")
    if not command.is_file():
        pytest.fail(f"{command}: not built; run scripts/build", pytrace=False)

    def run(
        text: str, *arguments: str, budget: str = "", code: int = 0, **extra: str
    ) -> tuple[list[str], str]:
        script = tmp_path / "train.py"
        script.write_text(text)
        line = [sys.executable, str(script), *arguments]
        if budget:
            asked = [] if budget == "none" else ["--budget", budget]
            line = [str(command), "run", *asked, "--", *line]
        environment = {
            **os.environ,
            "REPRISE_LAUNCH": str(root / "clients/python/src/reprise/launch"),
            "REPRISE_AGENT": str(agent_library),
            "REPRISE_DAEMON": str(daemon_binary),
            "PYTHONPATH": os.pathsep.join(
                [str(root / "clients/python/src"), os.environ.get("PYTHONPATH", "")]
            ),
            **extra,
        }
        done = subprocess.run(
            line,
            env=environment,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return [x for x in done.stdout.splitlines() if x.startswith(("0x", "-0x"))], done.stderr

    return run


def test_a_plain_loop_trains_under_a_plan_and_prints_the_same_losses(job: Any) -> None:
    plain, _ = job(LOOP, "plain")

    found, errors = job(LOOP, "plain", budget="0.75x")

    assert found == plain
    assert "It fits in" in errors
    assert "values made again bit for bit equal" in errors


@pytest.mark.long
def test_a_whole_job_in_the_careful_mode_is_planned_checked_every_ten_steps_and_says_so(
    job: Any,
) -> None:
    loop = LOOP.replace("range(12)", "range(30)")
    plain, _ = job(loop, "plain")

    found, errors = job(loop, "plain", budget="0.75x", REPRISE_CAREFUL="1")

    assert found == plain
    assert errors.count("careful mode: REPRISE_CAREFUL=1. Plans run in Python") == 1, errors
    assert "values are compared every 10 planned steps" in errors
    assert "It fits in" in errors
    # Outside of the careful mode, so short a job is checked once.
    (checks,) = set(re.findall(r"bit for bit equal in (\d+) checks", errors))
    assert int(checks) >= 2


@pytest.mark.long
def test_a_job_that_runs_out_of_memory_without_a_plan_trains_within_its_budget(
    job: Any,
) -> None:
    # Large blocks go back to the system when they are freed, and do not fray the heap.
    malloc = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
    plain, _ = job(HUNGRY, "unlimited")
    assert len(plain) == 20
    with pytest.raises(AssertionError, match="can't allocate memory"):
        job(HUNGRY, "limited", **malloc)

    found, errors = job(HUNGRY, "limited", budget="60MiB", **malloc)

    assert found == plain
    assert "It fits in 60.0 MiB" in errors
    assert "values made again bit for bit equal" in errors
    assert errors.count("the first steps run under a plan made from their shapes alone") == 1
    assert "over the budget" not in errors


@pytest.mark.long
def test_a_job_without_a_budget_that_runs_out_of_memory_is_told_a_command_that_trains(
    job: Any,
) -> None:
    # A function holds the model: it is gone with the traceback.
    head, layers, body = HUNGRY.replace("range(20)", "range(7)").partition("layers =")
    hungry = f"{head}def main():\n{textwrap.indent(layers + body, '    ')}\nmain()\n"
    plain, _ = job(hungry, "unlimited")

    found, errors = job(hungry, "limited", budget="none", code=1)

    assert len(found) < 7
    (budget,) = set(re.findall(r"reprise run --budget (\d+MiB) -- env MALLOC_", errors))
    assert "it would have fitted: the step needs" in errors
    assert "could not find out" not in errors
    assert "WHAT WAS ALIVE" in errors
    assert errors.count("(an estimate, from shapes): reprise run --budget") == 1
    assert errors.rstrip().endswith("train.py limited")  # after Next:
    trace = errors.partition("Traceback")[2].partition("RuntimeError")[0]
    assert "train.py" in trace
    assert "reprise" not in trace
    again, errors = job(hungry, "limited", budget=budget, MALLOC_MMAP_THRESHOLD_="1000000")
    assert again == plain
    assert "over the budget" not in errors


@pytest.mark.long
def test_a_first_backward_that_does_not_fit_runs_under_a_plan(job: Any) -> None:
    malloc = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
    plain, _ = job(BACKWARD, "unlimited", "raises")
    assert len(plain) == 8

    found, errors = job(BACKWARD, "limited", "raises", budget="100MiB", **malloc)

    assert found == plain
    assert "It fits in 100.0 MiB" in errors
    assert "values made again bit for bit equal" in errors
    assert "no plan yet" not in errors


BODY = LOOP.replace(
    "for step in range(12):", "def hook(step): pass\n%s\nfor step in range(7):"
).replace("    optimizer.zero_grad()", "    hook(step)\n    optimizer.zero_grad()")
ENDS = {
    "its own exit code": ("", "import sys; print(sys.argv[1:]); sys.exit(3)", 3),
    "an exception": (
        "def hook(step):\n    if step == 6: raise ValueError('its own')",
        "",
        1,
    ),
    "Ctrl-C": (
        "import os\ndef hook(step):\n    if step == 6: os.kill(os.getpid(), 2)",
        "",
        130,
    ),
    "an exit past Python": ("", "import os; sys.stdout.flush(); os._exit(9)", 9),
}


@pytest.mark.long
@pytest.mark.parametrize("how", ENDS)
def test_a_job_ends_under_reprise_as_it_ends_without(how: str, job: Any) -> None:
    before, after, code = ENDS[how]
    text = BODY % before + after

    plain, _ = job(text, "--lr", "1", code=code if code != 130 else -2)
    found, errors = job(text, "--lr", "1", budget="0.75x", code=code)

    assert found == plain
    assert "It fits in" in errors
    failed = how == "an exception"
    assert errors.count("\nValueError: its own\n") == failed  # as Python prints it
    assert errors.count("The job failed: ValueError: its own.") == failed


CELLS = """
for cell in TEXT.split("for step"), :
    space = {"__name__": "__main__"}
    exec(compile(cell[0], "<cell 1>", "exec"), space)
    exec(compile("for step" + cell[1], "<cell 2>", "exec"), space)
"""


@pytest.mark.long
def test_the_cells_of_a_notebook_are_planned_like_a_program(job: Any) -> None:
    plain, _ = job(LOOP, "plain")

    found, errors = job(f"TEXT = {LOOP!r}\n{CELLS}", "plain", budget="0.75x")

    assert found == plain
    assert "It fits in" in errors


@pytest.mark.long
def test_a_program_that_updates_its_parameters_by_hand_is_planned(job: Any) -> None:
    text = LOOP.replace(
        "    optimizer.step()",
        "    for p in model.parameters(): p.data -= 0.01 * p.grad",
    )

    plain, _ = job(text, "plain")
    found, errors = job(text, "plain", budget="0.75x")

    assert found == plain
    assert "It fits in " in errors
    assert "values made again bit for bit equal" in errors


COMPILED = """
import torch
from torch import nn
torch.manual_seed(0); torch.set_num_threads(1)
model = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(32, 32), nn.GELU())])
compiled = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    loss = compiled(torch.randn(256, 32)).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
"""


@pytest.mark.long
def test_the_reference_of_a_compiled_step_is_not_planned_itself(job: Any) -> None:
    plain, _ = job(COMPILED)

    found, errors = job(COMPILED, budget="0.6x")

    assert found == plain
    assert "gradients bit for bit equal in 1 check" in errors
    assert errors.count("reprise: It fits in") == 1


def test_a_module_that_a_backward_recomputes_is_not_armed() -> None:
    watch = object.__new__(attach._Watch)
    watch._pid = os.getpid()
    watch._armed = False
    block, found = torch.nn.Linear(2, 2), []

    def again(_: torch.Tensor) -> None:
        with torch.enable_grad():  # as checkpoints of the program do
            found.append(watch._is_root(block))

    out = block(torch.ones(1, 2))
    out.register_hook(again)
    out.sum().backward()

    assert watch._is_root(block)
    assert found == [False]


def test_a_program_that_never_trains_logs_that(job: Any) -> None:
    _, errors = job("import torch; print(torch.nn.Linear(2, 2)(torch.ones(1, 2)))", budget="0.75x")

    assert errors.count("no optimizer of torch.optim has stepped") == 1


@pytest.mark.long
def test_a_program_that_never_calls_its_model_logs_that_no_forward_was_seen(
    job: Any,
) -> None:
    text = LOOP.replace("nn.Sequential(*[mlp() for _ in range(6)])", "nn.Linear(128, 128)")
    text = text.replace("model(", "model.forward(")

    plain, _ = job(text, "plain")
    found, errors = job(text, "plain", budget="0.75x")

    assert found == plain
    assert errors.count("no model in training mode was called with gradients as model(inputs)") == 1
    assert "never attached: no process of it was seen to train a PyTorch model" in errors


LIMITED = """
import resource
status = open("/proc/self/status").read()
limit = (int(status.split("VmData:")[1].split()[0]) << 10) + (700 << 20)
resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))
print("limit", limit, file=__import__("sys").stderr)
"""


@pytest.mark.long
@pytest.mark.parametrize("budget", ["90%", "fit"])
def test_a_percentage_of_what_the_process_may_have_is_a_budget(job: Any, budget: str) -> None:
    text = LOOP.replace("import sys, torch", "import sys, torch\nimport torch._dynamo" + LIMITED)

    found, errors = job(text, budget=budget)

    assert len(found) == 12
    limit = int(errors.split("limit ")[1].split()[0])
    if budget == "90%":
        asked = format_bytes(int(limit * 0.9))
        assert f"reprise: It fits in {asked} as it is: nothing is recomputed.  Peak " in errors
    else:  # some of the 700 MiB is taken between the limit and the first plan
        mebibytes = float(errors.split("reprise: It fits in ")[1].split(" MiB")[0])
        assert 300 <= mebibytes <= 700, errors


def test_another_sitecustomize_still_runs(job: Any, tmp_path: Path) -> None:
    other = tmp_path / "site"
    other.mkdir()
    (other / "sitecustomize.py").write_text("import sys; print('mine', file=sys.stderr)")

    _, errors = job(
        "print(1)",
        budget="0.5x",
        PYTHONPATH=os.pathsep.join([str(other), os.environ.get("PYTHONPATH", "")]),
    )

    assert errors.count("mine") == 1


@pytest.mark.long
def test_a_program_that_arms_its_model_itself_keeps_its_own_settings(job: Any) -> None:
    text = LOOP.replace(
        "optimizer =",
        "import reprise; reprise.auto(model, budget='0.8x', verify_every=0)\noptimizer =",
    )

    plain, _ = job(text, "armed", REPRISE_DISABLE="1")
    found, errors = job(text, "armed", budget="0.8x")

    assert found == plain
    assert errors.count("reprise: It fits in") == 1


@pytest.mark.long
@pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None,
    reason="needs transformers and accelerate",
)
@pytest.mark.parametrize("which", ["gpt2", "bert"])
def test_a_hugging_face_trainer_runs_under_a_plan_unchanged(
    job: Any, which: str, tmp_path: Path
) -> None:
    plain, _ = job(TRAINER, which, str(tmp_path / "plain"))

    found, errors = job(TRAINER, which, str(tmp_path / "planned"), budget="0.6x")

    assert len(plain) == 14
    assert found == plain
    assert "It fits in" in errors
    assert "values made again bit for bit equal" in errors
    measured = next(x for x in errors.splitlines() if x.startswith("reprise: measured "))
    assert abs(float(measured.split("(")[1].split(" %")[0])) <= 2.0, measured
    assert json.dumps(found)
