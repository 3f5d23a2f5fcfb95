# SPDX-License-Identifier: Apache-2.0
"""The scripts, and how many seconds each may take from its start to its last word."""

from __future__ import annotations

SECONDS = {"first": 420, "second": 270, "third": 270}
