# SPDX-License-Identifier: Apache-2.0
"""What a check found, as those who report it and act on it read it."""

from __future__ import annotations

from dataclasses import dataclass

# What a program may ask to be compared.
VALUES, GRADIENTS = "values", "gradients"
# Stands before the name of a buffer among the names of what differs.
BUFFER = "buffer "
# Stands before the number of an output of the model's forward.
OUTPUT = "output "


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a check found: of gradients, or of values that were made again, and of buffers.
    `differing`: names, those of buffers after "buffer ", numbers of outputs after "output ";
    `buffers`: so many were compared that the step wrote; `outputs`: so many of the forwards in it;
    `extra_bytes`: what the check itself held during the step. Not `repeatable`: the
    step without a plan differs from itself."""

    checked: int
    differing: tuple[str, ...]
    left_out: int = 0
    extra_bytes: int = 0
    values: bool = False
    repeatable: bool = True
    buffers: int = 0
    outputs: int = 0

    def why_unchecked(self) -> str:
        """Says why a check of gradients compared nothing."""
        if self.repeatable:
            return "the step cannot run twice without side effects"
        return (
            "without a plan the step gives different gradients each time it runs (kernels that "
            "add in a changing order, or a state that is kept outside of the model). That says "
            "nothing about the plan, which stays"
        )

    def what_differs(self) -> str:
        """Says how many gradients, buffers and outputs differ in a check of gradients."""
        buffers = sum(name.startswith(BUFFER) for name in self.differing)
        outputs = sum(name.startswith(OUTPUT) for name in self.differing)
        gradients = len(self.differing) - buffers - outputs
        found = [f"{gradients} of {self.checked} gradients"] if gradients else []
        found += [f"{buffers} of {self.buffers} buffers that the forward writes"] if buffers else []
        found += [f"{outputs} of {self.outputs} outputs"] if outputs else []
        return f"{' and '.join(found)} differ"
