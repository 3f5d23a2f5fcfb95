# SPDX-License-Identifier: Apache-2.0
"""Plans by input size and by way of the control flow, of one rank or several."""
