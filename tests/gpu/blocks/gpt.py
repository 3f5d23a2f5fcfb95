# SPDX-License-Identifier: Apache-2.0
"""GPT-2 small in bfloat16 with fused attention: plain twice, observed, under half, checkpointed by
hand in three ways, and under the peaks that those have."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from gpt2 import GptJob
from runner import Block, Here, Row
from sizes import sizes
from training import beside, trained


def gpt(here: Here, way: str = "", budget: Any = "plain", deterministic: bool = False) -> None:
    """Trains it one way and compares it with the plain rows."""
    if deterministic:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.use_deterministic_algorithms(True)
    size = sizes(here.rehearsal)
    figures = trained(here, GptJob(size.gpt, way), size.steps, budget=budget)
    prefix = "deterministic " if deterministic else ""
    if here.row not in ("plain", "deterministic plain"):
        again = "" if deterministic or here.row == "plain again" else "plain again"
        beside(here, figures, f"{prefix}plain", again)


def under_peak_of(row: str) -> Callable[[Here], None]:
    """Under a budget of the bytes that a way by hand asked for."""
    return lambda here: gpt(here, budget=int(here.found(row)["requested"]))


HAND = ("block", "sqrt", "selective")
GPT = Block(
    "gpt",
    "GPT-2 small: do bytes, announced time and bits hold, and what do the ways by hand cost?",
    110.0,
    (
        Row("plain", gpt, 40),
        Row("plain again", gpt, 30),
        Row("0.5x", lambda here: gpt(here, budget="0.5x"), 40),
        *(Row(way, lambda here, way=way: gpt(here, way), 30) for way in HAND),
        *(Row(f"reprise at {way}", under_peak_of(way), 40) for way in HAND),
        Row("observed", lambda here: gpt(here, budget=None), 30),
        Row("deterministic plain", lambda here: gpt(here, deterministic=True), 30),
        Row("deterministic 0.5x", lambda here: gpt(here, budget="0.5x", deterministic=True), 40),
    ),
)


def small(here: Here, budget: Any = "plain") -> None:
    """A network so small that the host's launches are what a step takes."""
    size = sizes(here.rehearsal)
    job = GptJob(size.small)
    figures = trained(here, job, 2 * size.steps, budget=budget)
    if here.row != "plain":
        beside(here, figures, "plain")
        plain = here.found("plain")["host_ms"]
        added_us = (figures["host_ms"] - plain) * 1e3
        here.say(host_added_us=added_us)
        if "ops" in figures:
            here.say(host_us_an_op=added_us / figures["ops"])


LAUNCH = Block(
    "launch",
    "A launch-bound GPT: what of the host's time does Reprise add, and is the announced time true?",
    30.0,
    (
        Row("plain", small, 20),
        Row("observed", lambda here: small(here, None), 20),
        Row("0.7x", lambda here: small(here, "0.7x"), 25),
        Row("0.7x in Python", lambda here: small(here, "0.7x"), 25, {"REPRISE_FAST": "0"}),
    ),
)
