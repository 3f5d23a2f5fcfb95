# SPDX-License-Identifier: Apache-2.0
"""Starts a session: daemon, agent, meter, hooks. What is missing is said, and training goes on."""

from __future__ import annotations

import contextlib
import gc
import os
import platform
import sys
import weakref
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import BuiltinFunctionType

import torch
from torch import nn

from reprise.agent import abi, daemon
from reprise.agent.agent import Agent, own_run_id
from reprise.base.errors import RepriseError
from reprise.base.saying import say
from reprise.torch.compiled.fast import prepare
from reprise.torch.internals.contracts import missing
from reprise.torch.internals.distributed import rank_here, unwrapped
from reprise.torch.internals.dynamo import compiled_in_pieces, compiled_parts
from reprise.torch.internals.guard import described
from reprise.torch.internals.versions import CAREFUL_EVERY, careful, lacks
from reprise.torch.job.job import Options
from reprise.torch.job.stages import Stages
from reprise.torch.joint.job import CompiledJob
from reprise.torch.joint.joint_pass import supported
from reprise.torch.joint.site import pieces_of, site_of
from reprise.torch.ladder.ranks import run_of_job
from reprise.torch.meter.state import model_device, open_meter, start_counting
from reprise.torch.policy.events import Fact
from reprise.torch.session.deferred import defer, on_meta
from reprise.torch.session.session import Session
from reprise.torch.training import armed

# Seconds to wait for the first plan, unless REPRISE_PLAN_TIMEOUT says otherwise.
DEFAULT_WAIT_S = 60.0

# What torch captures itself keeps its memory in a pool that no peak counts, and writes each result
# over that of its last run: a comparison would overwrite the gradients that it compares.
MAKES_GRAPHS = (
    "torch.compile captures this model into CUDA graphs of its own, as the modes reduce-overhead "
    "and max-autotune do, and what these keep in memory is not measured. Compile it without them, "
    "or capture the steps of the eager model with torch.cuda.graph, which can be done under a plan"
)

_said_careful = False


def start(models: list[nn.Module], options: Options) -> None:
    """Starts the training loop of a model: a session, or a compiled job if torch.compile has
    wrapped the model. Several models are the stages of a pipeline and have one session. A loop
    whose model is on the meta device begins later (deferred.py). If it cannot be started, the
    reason is said. Raises RepriseError if one is no model."""
    if not models:
        raise RepriseError("model: an empty list has no stages")
    for one in models:
        if not isinstance(one, nn.Module):
            raise RepriseError(f"model: must be a torch.nn.Module, got {type(one).__name__}")
    begin = partial(_begin, options=options)
    if on_meta(models):
        defer(models, begin)
    else:
        begin(models)


def _begin(models: list[nn.Module], options: Options) -> None:
    model = models[0] if len(models) == 1 else Stages(models)
    try:
        if options.budget is not None:
            options = replace(options, verify_every=_with_care(options.verify_every))
            _say_what_is_not_kept(model, options)
            if (job := _start_compiled(model, options)) is not None:
                armed.add(model, job)
                return
        model = unwrapped(model)
        session = _start(model, options)
        for one in models:
            armed.add(one, session)
        _may_hand_over(session)
    except Exception as error:
        own = isinstance(error, RepriseError)
        why = f"training without Reprise: {error if own else described(error)}"
        armed.unarmed.update(dict.fromkeys(models, why))
        say(why)


def _say_what_is_not_kept(model: nn.Module, options: Options) -> None:
    """Says which of the options this job does not have."""
    wishes = options.on_infeasible != "plain" or options.max_overhead is not None
    if not wishes and not options.host_bytes:
        return
    compiled = site_of(model) is not None or bool(compiled_parts(model))
    if wishes and (compiled or int(os.environ.get("WORLD_SIZE") or 1) > 1):
        what = "a compiled model" if compiled else "a job of several ranks"
        say(f"on_infeasible and max_overhead: {what} trains without a plan where none fits")
    if options.host_bytes and compiled:
        say("host_budget: plans of a compiled model use no host memory yet")


def _with_care(verify_every: int) -> int:
    """Returns how often steps are checked. In the careful mode that is at least every tenth, unless
    the program switched checks off; the mode is logged once."""
    global _said_careful
    why = careful()
    if not why:
        return verify_every
    every = min(verify_every, CAREFUL_EVERY)
    if not _said_careful:
        _said_careful = True
        checks = f"every {every} planned steps" if every else "never, as verify_every=0 says"
        say(f"careful mode: {why}. Plans run in Python; values are compared {checks}{lacks()}")
    return every


def _may_hand_over(session: Session) -> None:
    """Lets a session that has a budget be replaced by one of another module (`_hand_over`)."""
    if session.job.options.budget is not None:
        session.job.hand_over = partial(_hand_over, weakref.ref(session))


def _hand_over(known: weakref.ref[Session], part: nn.Module | None) -> bool:
    """Plans a part of a model, several models with it (`part`: all of them), or what torch.compile
    made of it (`part`: None), in its place."""
    session = known()
    if session is None:
        return False
    model, options = session.job.model, session.job.options
    if part is None:
        part = _compiled_around(model)
        if part is None:
            return False
        session.unarm()
        try:
            job = _start_compiled(part, options)
        except RepriseError as error:
            session.parts.planning.stop(f"training without a plan: {error}")
            return True
        if job is None:
            return False
        for known_as in (part, model):
            armed.add(known_as, job)
        session.job.say("this model was compiled after it was armed: its compiled code is planned")
    elif isinstance(part, Stages):
        session.unarm()
        name = ", ".join(type(one).__name__ for one in part.children())
        joint = _start(part, replace(options, name=name))
        _may_hand_over(joint)
        joint.attached = session.attached
        for one in part.children():
            armed.add(one, joint)
    else:
        armed.add(model, _start(part, options))
    session.unarm()
    session.job.happened(Fact.REMOVED)
    session.gone()
    return True


def _compiled_around(model: nn.Module) -> nn.Module | None:
    """Returns what torch.compile made of a model after it was armed, which is called inside code
    that Dynamo has made: the model itself if it was compiled in place, or the wrapper around it."""
    if site_of(model) is not None:
        return model
    for thing in gc.get_objects():
        # Not `isinstance`: asking a lazy proxy for its class could run it.
        if issubclass(type(thing), nn.Module) and "dynamo_ctx" in thing.__dict__:
            found: nn.Module = thing
            if getattr(found, "_orig_mod", None) is model:
                return found
    return None


def _start_compiled(model: nn.Module, options: Options) -> CompiledJob | None:
    """Starts a job that plans the graphs of torch.compile, and returns it; None if nothing has
    compiled the model or its parts in a way that can be planned, or this torch has no place for
    that. RepriseError: it is compiled in a way that leaves no room for a plan."""
    site = site_of(model) or pieces_of(model)
    if supported() or site is None:
        return None
    if site.makes_graphs:
        raise RepriseError(MAKES_GRAPHS)
    assert options.budget is not None
    labels = {**_labels(model, options), "adapter": "torch.compile", "executor": "joint"}
    _, agent = _connect(labels)
    return CompiledJob(model, options.budget, options.verify_every, agent, options.verify)


def _connect(labels: dict[str, str]) -> tuple[daemon.Collector, Agent]:
    """Connects to the daemon of this machine, as a part of the run that all ranks of the job are.
    If that was launched here under another id, the session has it as its label `launch`."""
    live = Agent.live()
    own = live.run_id if live else own_run_id()
    run = own
    try:
        run = run_of_job(own)
    except RepriseError as error:
        say(
            f"rank {rank_here()} could not learn the id of the job's run, so its records are in a "
            f"run of its own: {error}"
        )
    if run != own and live is not None:
        say(
            f"rank {rank_here()} reports to run {own}, the other ranks to run {run}: its session "
            "began before the ranks met"
        )
        run = own
    if run != own and os.environ.get("REPRISE_RUN_ID"):
        labels["launch"] = own
    return Agent.connect(labels, run)


def _labels(model: nn.Module, options: Options) -> dict[str, str]:
    """Returns what the page says of the job beside the agent's own capabilities."""
    program = Path(sys.argv[0]).name or "python"
    labels = {
        "name": os.environ.get("REPRISE_NAME") or program,
        "program": program,
        "model": options.name,
        "adapter": "torch eager",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": str(model_device(model)),
        "executor": "tape",
        "budget_at_start": options.budget if options.budget is not None else "none",
    }
    if torch.version.cuda is not None:
        labels["cuda"] = torch.version.cuda
    with contextlib.suppress(RepriseError):
        builtin = isinstance(abi.load().op_begin, BuiltinFunctionType)
        labels["op_marks"] = "builtin functions" if builtin else "ctypes: slower in traced steps"
    return labels


def _start(model: nn.Module, options: Options) -> Session:
    why = _unsupported(model)
    if why:
        raise RepriseError(why)
    meter = open_meter(model_device(model))
    # The step that is captured collects before it begins.
    start_counting(meter, model_device(model), collected=False)
    if not meter.exact:
        counted = (
            "by block" if meter.name == "cuda" else "per storage, without the workspace of ops"
        )
        say(f"peaks are measured {counted}: {meter.why}")
    if options.budget is not None:
        prepare()
    labels = {**_labels(model, options), "meter": meter.name}
    if int(os.environ.get("WORLD_SIZE") or 1) == 1:
        labels["apply"] = "yes"  # another budget while it runs; ranks agree on theirs at the start
    collector, agent = _connect(labels)
    session = Session(model, agent=agent, meter=meter, options=options, wait_s=_wait_s())
    parts = compiled_parts(model) if options.budget is not None else []
    if parts:
        session.parts.startup.skip()
        session.parts.planning.stop(compiled_in_pieces(parts))
    elif collector.socket is None or agent.status == "inert":
        session.parts.planning.stop(f"training without a plan: {collector.why or agent.why}")
    return session


def _unsupported(model: nn.Module) -> str:
    if isinstance(model, torch.jit.ScriptModule):
        return "the model is compiled with TorchScript"
    if site_of(model) is not None:
        return f"the model is compiled with torch.compile; {supported() or 'it has no budget'}"
    devices = {t.device for t in (*model.parameters(), *model.buffers())}
    if len(devices) > 1:
        return f"its parameters are on {len(devices)} devices"
    return missing()


def _wait_s() -> float:
    text = os.environ.get("REPRISE_PLAN_TIMEOUT", "")
    try:
        return max(0.0, float(text)) if text else DEFAULT_WAIT_S
    except ValueError:
        say(f"REPRISE_PLAN_TIMEOUT={text!r} is not a number of seconds; using {DEFAULT_WAIT_S:.0f}")
        return DEFAULT_WAIT_S
