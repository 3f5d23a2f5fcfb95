# SPDX-License-Identifier: Apache-2.0
"""A forward that runs again, and its backward restarted at its outputs."""
