# SPDX-License-Identifier: Apache-2.0
"""The ring AllReduce benchmark: step tags, ring schedule, rank loop, verbs providers, results."""
