# SPDX-License-Identifier: Apache-2.0
"""Symphony in the data plane: one definition, run as reference, as integers and on the ASIC."""
