# SPDX-License-Identifier: Apache-2.0
"""One step as ops and storages, and the graph that the planner reads."""
