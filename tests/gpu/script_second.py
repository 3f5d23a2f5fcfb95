# SPDX-License-Identifier: Apache-2.0
"""The second script: 270 s. Compiled jobs, half precision, what the agent costs, and programs as
people have them."""

from __future__ import annotations

from blocks.compiled import COMPILED
from blocks.cost import COST
from blocks.half import HALF
from blocks.others import OTHERS
from blocks.programs import PROGRAMS
from runner import Block

BLOCKS: tuple[Block, ...] = (COMPILED, HALF, COST, OTHERS, PROGRAMS)
