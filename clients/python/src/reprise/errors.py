# SPDX-License-Identifier: Apache-2.0
"""The exceptions of the package, each with one sentence as its message. `InfeasibleBudget`, the
third one, carries the plan that was refused and stands beside it (plan/received.py)."""

from __future__ import annotations


class RepriseError(Exception):
    """Something of Reprise cannot be done; the job itself can train on."""


class ServerUnavailable(RepriseError):
    """No daemon answers and none could be started."""
