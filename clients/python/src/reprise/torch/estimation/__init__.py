# SPDX-License-Identifier: Apache-2.0
"""What can be asked of a model before it trains."""
