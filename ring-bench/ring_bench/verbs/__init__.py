# SPDX-License-Identifier: Apache-2.0
"""Verbs: a small typed subset of libibverbs, and the providers that implement it."""

from ring_bench.verbs.registry import PROVIDERS, ProviderOptions, open_provider

__all__ = ["PROVIDERS", "ProviderOptions", "open_provider"]
