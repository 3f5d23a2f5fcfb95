# SPDX-License-Identifier: Apache-2.0
"""Any schedule executed exactly, to see whether predictions are right."""
