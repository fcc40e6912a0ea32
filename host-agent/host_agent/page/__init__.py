# SPDX-License-Identifier: Apache-2.0
"""The live page at `/`: jobs, their curves, and the Symphony switch.

Built with NiceGUI, which serves all scripts and styles itself: the page needs no internet. Each open page
asks the hub once a second and sends only charts that changed; every curve is bounded
(`host_agent.views.MAX_POINTS`).
"""

from host_agent.page.layout import attach_page

__all__ = ["attach_page"]
