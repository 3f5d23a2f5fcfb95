# SPDX-License-Identifier: Apache-2.0
"""Memory does not suffice: before there is a plan, and under one."""
