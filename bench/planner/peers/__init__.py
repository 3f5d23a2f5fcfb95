# SPDX-License-Identifier: Apache-2.0
"""Other planners on the same graph and budget.

A peer is a module with

  NAME       what the table calls it
  missing()  what has to be installed, or "" where it can run
  fits(graph, peers_limit)   why this graph is not for it, or ""
  solve(graph, budget_bytes, seconds) -> list of execs, or None where it found none

Run alone: python -m peers MODULE GRAPH BUDGET SECONDS prints one object of JSON.
"""
