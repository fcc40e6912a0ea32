# SPDX-License-Identifier: Apache-2.0
"""The host service: jobs, step overlap, collective completion time, metrics and the live page."""
