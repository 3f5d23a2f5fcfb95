# SPDX-License-Identifier: Apache-2.0
"""Decides which planned steps are checked bit for bit, and what follows from the result.

The first step under a plan, then every n-th. A model whose gradients depend on more than its
outputs has the values compared that were made again (`Audit`), any other its gradients (`Check`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from reprise import abi
from reprise.torch.check import quarantine
from reprise.torch.check.verify import Audit, Check, CheckResult
from reprise.torch.ladder.ladder import Rung
from reprise.torch.tape.tape_run import Run

if TYPE_CHECKING:
    from reprise.torch.session.session import Session

__all__ = ["Judge"]


class Judge:
    """The checks of one session."""

    def __init__(self, session: Session, every: int) -> None:
        self._session = session
        self.every = every
        self._since = 0
        self._known: set[int] = set()  # rungs that have been checked, and, negative, traced
        self.checked = False  # the step under way

    def begin(self, rung: Rung, run: Run) -> Check | None:
        """A planned step begins: is it checked, or traced?"""
        check = None
        if (
            self.every
            and not rung.sketch
            and (rung.number not in self._known or self._since >= self.every)
        ):
            self._since = 0
            self._known.add(rung.number)
            # Where nothing fits without a plan, no reference does: values are compared.
            if rung.leaks or self._session.first.host is not None:
                run.audit = Audit()
            else:
                check = Check(self._session.model, rung.left_out)
        elif -rung.number not in self._known:
            self._known.add(-rung.number)
            # Not the first: its check would be in the picture.
            self._session.step.tracing.begin(run)
        self._since += 1
        return check

    def compare(self, check: Check) -> None:
        """After the backward, before the optimizer."""
        session = self._session
        session.busy = self.checked = True
        try:
            result = check.compare(session.forward.plain)
        except Exception as error:
            # The reference is ours: its failure must not be the job's. Out of memory, mostly.
            session.say(f"step {session.step.number} could not be verified: {error}")
            return
        finally:
            session.busy = False
        if not result.checked and session.planning.rung is not None:
            # Clipped, scaled: no gradient is the model's own any more. Values are compared then.
            session.planning.rung.leaks = True
            self._since = self.every
            return
        self.judge(result)

    def judge(self, result: CheckResult) -> None:
        """A result of either kind."""
        session = self._session
        rung, step = session.planning.rung, session.step.number
        assert rung is not None
        assert rung.plan is not None
        session.measured.checked(result)
        equal = not result.differing
        plan = rung.plan
        session.agent.verify(
            step,
            plan_id=plan.plan_number,
            checked=result.checked,
            differing=len(result.differing),
            flags=abi.VERIFY_BITWISE if equal else abi.VERIFY_FAILED,
            first_name=0 if equal else session.agent.intern(result.differing[0]),
        )
        if not equal:
            report = {"step": step, "differing": result.differing, "torch": torch.__version__}
            quarantine.put(plan, rung.graph.to_json(), report)
            session.planning.drop(
                f"step {step}: {len(result.differing)} of {result.checked} gradients differ "
                f"from the unplanned ones ({result.differing[0]} first); plan {plan.plan_id} is "
                "removed and training goes on without one"
            )
