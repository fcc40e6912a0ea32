# SPDX-License-Identifier: Apache-2.0
"""The testbed without hardware: NICs, links and switches, packet by packet, in virtual time."""
