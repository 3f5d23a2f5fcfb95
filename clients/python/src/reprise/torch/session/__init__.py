# SPDX-License-Identifier: Apache-2.0
"""One armed model: its hooks, its steps, its stages."""
