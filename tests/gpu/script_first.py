# SPDX-License-Identifier: Apache-2.0
"""The first script: 420 s. What users ask of a GPU, and whether its tracing can be believed."""

from __future__ import annotations

from blocks.bits import BITS
from blocks.facts import FACTS
from blocks.fits import FITS
from blocks.gpt import GPT, LAUNCH
from blocks.headline import HEADLINE
from blocks.windows import WINDOWS
from runner import Block

BLOCKS: tuple[Block, ...] = (FACTS, WINDOWS, GPT, HEADLINE, FITS, BITS, LAUNCH)
