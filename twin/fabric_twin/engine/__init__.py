# SPDX-License-Identifier: Apache-2.0
"""The packet engine: arrays (`state`), congestion control (`dcqcn`) and the event loop (`kernel`)."""
