# SPDX-License-Identifier: Apache-2.0
"""The switch: its data plane (defined once), BF-Runtime client, REST service and metrics."""
