# SPDX-License-Identifier: Apache-2.0
"""The executor: a plan as a program, and steps that run under it."""
