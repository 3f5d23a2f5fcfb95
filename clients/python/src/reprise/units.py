# SPDX-License-Identifier: Apache-2.0
"""Bytes, times and percentages as people write and read them.

The C++ and TypeScript twins print the same; all three are tested against
tests/fixtures/units.json.
"""

from __future__ import annotations

import re

from reprise.errors import RepriseError

__all__ = ["check_budget", "format_bytes", "format_duration", "format_percent"]
