# SPDX-License-Identifier: Apache-2.0
"""What all programs of the testbed do alike: output that can fail, files that are whole, requests that are for us."""
