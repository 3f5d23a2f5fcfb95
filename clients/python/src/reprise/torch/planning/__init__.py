# SPDX-License-Identifier: Apache-2.0
"""From a captured step to the plan that the next steps run under, on one rank or several."""
