# SPDX-License-Identifier: Apache-2.0
"""The exceptions of the package, each with one sentence as its message. The third one,
`InfeasibleBudget`, is next to the plan that it carries (agent/received.py)."""

from __future__ import annotations


class RepriseError(Exception):
    """Reprise cannot do something; the job itself can go on training."""


class ServerUnavailable(RepriseError):
    """No daemon answers and none could be started."""
