# SPDX-License-Identifier: Apache-2.0
"""Measures live bytes and step times, and detects when a step must not be observed."""
