# SPDX-License-Identifier: Apache-2.0
"""What every part of the package uses: errors, units, budgets, messages as JSON."""
