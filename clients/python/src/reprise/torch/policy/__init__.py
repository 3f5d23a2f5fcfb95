# SPDX-License-Identifier: Apache-2.0
"""What a job does about an event, decided without torch."""
