# SPDX-License-Identifier: Apache-2.0
"""The third script: 270 s. All rows of the first two that did not run through (--after), then what
is asked last."""

from __future__ import annotations

import script_first
import script_second
from blocks.rest import REST
from runner import Block

BLOCKS: tuple[Block, ...] = (*script_first.BLOCKS, *script_second.BLOCKS, REST)
