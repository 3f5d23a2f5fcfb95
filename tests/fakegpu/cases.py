# SPDX-License-Identifier: Apache-2.0
"""The jobs that run on the fake GPU, and what must come of each under its budget.

Every one ends with the weights of the same job without Reprise on a device that is large enough,
and none of its planned steps waits for the device, but for those that are checked or traced.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

# When the fake does the work of streams (FAKEGPU_WORK); a random order has any number as its seed.
MOMENTS = EARLIEST, LATEST, RANDOM = "earliest", "latest", "random:1"

PLANNED, REFUSED, UNPLANNED = "training under a plan", "refused", "unplanned"

SMALL_CUBLAS = {"FAKEGPU_CUBLAS_WORKSPACE": "1048576", "CUBLAS_WORKSPACE_CONFIG": ":1024:1"}
GPT_SMALL = ("--net", "gpt", "--batch", "8")
RESNET = ("--net", "resnet", "--depth", "11")
# The step peaks at 82.9 MiB.
GPT = ("--net", "gpt", "--batch", "16", "--context", "128", "--dropout", "0.1")


def memory(mib: int) -> dict[str, str]:
    return {**SMALL_CUBLAS, "FAKEGPU_MEMORY": str(mib << 20)}


@dataclass(frozen=True)
class Case:
    """`says`: in a line of Reprise's; `base`: MiB that the plain step peaks at, at most."""

    name: str
    args: tuple[str, ...]
    budget: str
    env: dict[str, str] = field(default_factory=dict)
    ends: str = PLANNED
    says: str = ""
    silent: str = ""  # in no line
    base: float = 0.0
    mismatched: int = 0  # steps; they keep everything, and peak above the budget
    over: int = 0  # others that peak above it
    checked: bool = True
    repeats: bool = True  # two plain runs are the same to the bit
    eager: bool = False  # its reference runs step by step, without a CUDA graph
    options: tuple[str, ...] = ()  # of the job under the budget alone
    ordered: bool = False  # streams or pinned memory matter: it runs at all moments, not only late


JOBS = (
    # Ordinary jobs.
    Case("mlp", ("--depth", "12", "--width", "128", "--batch", "512", "--dropout", "0.1"), "0.5x"),
    Case("gpt", ("--net", "gpt", "--dropout", "0.1"), "0.5x", ordered=True),
    Case(
        "gpt, pinned batches over a side stream, two micro-batches",
        ("--net", "gpt", "--streams", "--accumulate", "2"),
        "0.6x",
        ordered=True,
    ),
    # Its output has other strides on the fake device than by its shapes: the first step leaves
    # its plan.
    Case("attention, fused", ("--net", "attention"), "0.5x", mismatched=1),
    Case("attention, autocast", ("--net", "attention", "--amp"), "0.6x"),
    Case(
        "resnet, batch norm of cuDNN", ("--net", "resnet", "--depth", "11"), "0.85x", ordered=True
    ),
    Case(
        "clipping by norm", ("--depth", "8", "--width", "128", "--batch", "512", "--clip"), "0.7x"
    ),
    Case(
        "autocast and GradScaler",
        ("--depth", "8", "--width", "128", "--batch", "512", "--amp", "--scaler"),
        "0.7x",
        silent="differ",
    ),
    Case(
        "first steps on the host, pinned batches over a side stream",
        ("--net", "gpt", "--streams"),
        "0.6x",
        options=("--first", "host"),
        ordered=True,
    ),
    Case("first steps plainly", ("--net", "gpt"), "0.6x", options=("--first", "plain")),
    Case(
        "gpt with host memory",
        ("--net", "gpt", "--batch", "32", "--context", "128", "--dropout", "0.1"),
        "0.4x",
        options=("--host-budget", "1GiB"),
        says="go to the host",
        ordered=True,
    ),
    Case(
        "gpt with host memory, two micro-batches",
        ("--net", "gpt", "--batch", "32", "--context", "128", "--accumulate", "2"),
        "0.5x",
        options=("--host-budget", "1GiB"),
        says="go to the host",
        ordered=True,
    ),
    Case(
        "gpt with optimizer state in host memory",
        ("--net", "gpt", "--width", "384", "--batch", "32", "--context", "128"),
        "0.4x",
        options=("--host-budget", "1GiB"),
        says="of it optimizer state",
        ordered=True,
    ),
    # Memory.
    Case(
        "the second step does not fit: the optimizer has made its state",
        GPT,
        "70MiB",
        memory(86),
        says="under a plan made from their shapes alone",
    ),
    Case(
        "memory runs out in a planned backward, and the step runs again",
        ("--net", "resnet", "--depth", "11", "--batch", "32"),
        "0.7x",
        {"FAKEGPU_MEMORY": str(200 << 20)},
        says="the step runs again under a tighter plan",
        options=("--fills", "8", "1"),
        ordered=True,
    ),
    Case("fits only under a plan", GPT, "70MiB", memory(88)),
    Case(
        "a budget next to all of the device leaves room for the allocator",
        GPT,
        "68MiB",
        memory(76),
        says="requesting a plan within",
        silent="out of memory",
        options=("--first", "host"),
    ),
    Case(
        "expandable segments",
        ("--net", "gpt"),
        "0.5x",
        {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    ),
    Case(
        "a share of the device",
        GPT,
        "70MiB",
        SMALL_CUBLAS,
        options=("--share", str(88 / 8192)),
    ),
    Case(
        "cudaMallocAsync: bytes asked for are not counted",
        ("--net", "gpt"),
        "0.8x",
        {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
        says="does not count the bytes that tensors ask for",
    ),
    Case(
        "workspaces of first calls",
        ("--net", "resnet", "--depth", "11"),
        "0.85x",
        {"FAKEGPU_CONV_WORKSPACE": "1048576,33554432"},
        base=30,
        over=1,  # the first step: no shape tells what first calls take
    ),
    Case(
        "cudnn.benchmark: a larger batch, whose first step tries algorithms, is not captured in it",
        ("--net", "resnet", "--depth", "11", "--benchmark", "--grows", "8", "--steps", "16"),
        "0.85x",
        {"FAKEGPU_CONV_WORKSPACE": "1048576,67108864"},
        says="torch.backends.cudnn.benchmark is on",
        base=70,
        mismatched=1,  # the step that tries them, under the plan of the smaller batch
    ),
    Case(
        "workspaces of cuBLAS from before",
        ("--net", "gpt", "--before", "3"),
        "0.6x",
        base=40,
    ),
    Case(
        "two devices, 64 MiB beside the model on the other",
        (
            *("--device", "cuda:1", "--beside", "64", "--depth", "8"),
            *("--width", "128", "--batch", "1024"),
        ),
        "0.5x",
        {"FAKEGPU_DEVICES": "2"},
        base=40,
    ),
    Case("nothing fits", ("--net", "gpt"), "1MiB", ends=REFUSED, says="1.0 MiB"),
    # What a GPU does.
    Case(
        "attention whose backward is not the same twice",
        ("--net", "attention"),
        "0.5x",
        {"FAKEGPU_NONDET": "_scaled_dot_product_efficient_attention_backward"},
        silent="is removed",
        repeats=False,
        mismatched=1,  # as above
    ),
    Case(
        "convolutions whose backward is not the same twice",
        ("--net", "resnet", "--depth", "11"),
        "0.85x",
        {"FAKEGPU_NONDET": "convolution_backward"},
        silent="is removed",
        repeats=False,
    ),
    Case(
        "bytes that kernels leave unwritten",
        ("--net", "attention", "--clip"),
        "0.5x",
        {"FAKEGPU_GARBAGE": "1"},
        silent="is removed",
        mismatched=1,  # as above
    ),
    Case(
        "a CUDA graph is captured before there is a plan",
        ("--depth", "6", "--width", "128", "--batch", "256", "--graph", "2", "--steps", "4"),
        "0.5x",
        ends=UNPLANNED,
        says="there is no plan yet",
        checked=False,
        options=("--first", "plain"),
    ),
    # torch checks that nothing else is in the pool of its graphs.
    Case(
        "compiled into CUDA graphs of torch's own",
        ("--depth", "6", "--width", "128", "--batch", "256", "--compiled", "cudagraphs"),
        "0.6x",
        {"FAKEGPU_CUBLAS_WORKSPACE": "0"},
        ends=UNPLANNED,
        says="captures this model into CUDA graphs of its own",
        checked=False,
        ordered=True,
    ),
    *(
        Case(
            f"a CUDA graph of {what}, replayed a hundred times",
            (*net, "--graph", str(steps), "--steps", str(steps + 100), *more),
            budget,
            SMALL_CUBLAS,
            says="captured into a CUDA graph under the plan",
            eager=True,
            ordered=budget == "0.6x",
        )
        for what, net, budget, steps, more in (
            ("a gpt's steps", (*GPT_SMALL, "--dropout", "0.1"), "0.6x", 8, ()),
            ("a gpt's steps, captured under a plan from shapes", GPT_SMALL, "0.6x", 2, ()),
            (
                "a gpt's steps with their optimizer",
                GPT_SMALL,
                "0.6x",
                8,
                ("--graphed", "optimizer"),
            ),
            ("a gpt's forward and its backward", GPT_SMALL, "0.6x", 8, ("--graphed", "callable")),
            ("a gpt's steps, in bytes", GPT_SMALL, "15MiB", 8, ()),
            ("two micro-batches", (*GPT_SMALL, "--accumulate", "2"), "0.6x", 8, ()),
            ("a resnet's steps", RESNET, "0.85x", 8, ()),
        )
    ),
    Case(
        "a layer runs on a side stream from step 9 on",
        ("--depth", "6", "--width", "128", "--batch", "256", "--strays", "9", "--steps", "11"),
        "0.5x",
        mismatched=2,
        ordered=True,
    ),
    Case(
        "a layer runs on a side stream from the first step on",
        ("--depth", "6", "--width", "128", "--batch", "256", "--strays", "0"),
        "0.7x",
        options=("--first", "host"),
        ordered=True,
    ),
)


def at_moments(case: Case) -> list[Case]:
    """A case, late or when it is asked for; and where that matters the others of its job."""
    return [case] + [
        replace(case, name=f"{case.name} ({moment})", env={**case.env, "FAKEGPU_WORK": moment})
        for moment in (EARLIEST, RANDOM)
        if case.ordered
    ]


CASES = tuple(one for case in JOBS for one in at_moments(case))
