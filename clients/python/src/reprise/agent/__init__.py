# SPDX-License-Identifier: Apache-2.0
"""The agent inside this process, the daemon beside it, and the plans that they hand over."""
