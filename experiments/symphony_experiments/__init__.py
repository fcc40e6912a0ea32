# SPDX-License-Identifier: Apache-2.0
"""The paper's evaluation, and what goes beyond it, as scenarios that anyone can run."""
