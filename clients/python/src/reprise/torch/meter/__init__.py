# SPDX-License-Identifier: Apache-2.0
"""How many bytes are alive, and when a look at a step has to stand aside."""
