# SPDX-License-Identifier: Apache-2.0
"""Facts about torch's operators, its hooks and modes, and memory that torch does not count."""
