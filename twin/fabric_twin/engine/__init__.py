# SPDX-License-Identifier: Apache-2.0
"""The packet engine: arrays (`state`), the event loop (`kernel`), hosts (`nic`, `dcqcn`) and switches (`switching`)."""
