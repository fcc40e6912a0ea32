# SPDX-License-Identifier: Apache-2.0
"""The page's style sheet: one set of rules, two sets of colours."""

from __future__ import annotations

__all__ = ["CSS"]

CSS = """
:root {
  --ground: #f4f6f9; --card: #ffffff; --line: #e2e7ee; --text: #1b2430; --soft: #5d6b7d;
  --accent: #3b82f6; --good: #0f9d6b; --warn: #b7700b; --bad: #d33a3a; --chip: #eef2f7;
}
.body--dark {
  --ground: #0e1319; --card: #171e27; --line: #263040; --text: #e6ebf2; --soft: #93a1b3;
  --accent: #60a5fa; --good: #34d399; --warn: #fbbf24; --bad: #f87171; --chip: #212b38;
}
body, .q-page, .q-layout { background: var(--ground) !important; color: var(--text); }
.nicegui-content { padding: 0; gap: 0; width: 100%; }

/* frame */
.sy-top {
  background: var(--card) !important; color: var(--text) !important; box-shadow: none !important;
  border-bottom: 1px solid var(--line); min-height: 52px; padding: 0 20px !important;
  display: flex; flex-flow: row nowrap; align-items: center; gap: 14px;
}
.sy-brand { font-weight: 650; font-size: 16px; letter-spacing: .01em; white-space: nowrap; }
.sy-brand span { color: var(--accent); }
.sy-link { color: var(--accent) !important; font-size: 13px; text-decoration: none; white-space: nowrap; }
.sy-link:hover, .sy-link:focus-visible { text-decoration: underline; }
.sy-switches { display: flex; flex-flow: row wrap; gap: 6px 8px; }
.sy-main {
  display: grid; grid-template-columns: 248px minmax(0, 1fr); gap: 14px; align-items: start;
  width: 100%; max-width: 1720px; margin: 0 auto; padding: 14px 20px 20px;
}
.sy-side, .sy-panel { display: flex; flex-direction: column; gap: 10px; width: 100%; min-width: 0; }

/* small things */
.sy-soft { color: var(--soft); font-size: 12.5px; }
.sy-note { color: var(--soft); font-size: 11.5px; line-height: 17px; min-height: 17px; }
.sy-two { min-height: 34px; }
.sy-title { font-size: 19px; font-weight: 650; line-height: 1.25; }
.sy-h { font-size: 13px; font-weight: 620; white-space: nowrap; }
.sy-grow { flex: 1 1 auto; min-width: 0; }
.sy-clip { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.sy-row { display: flex; flex-flow: row nowrap; align-items: center; gap: 8px; width: 100%; }
.sy-wrap { flex-wrap: wrap; }
.sy-head { row-gap: 0; }
.sy-card {
  display: block; width: 100%; padding: 10px 14px; box-shadow: none;
  background: var(--card); border: 1px solid var(--line); border-radius: 10px;
}
.sy-chip {
  background: var(--chip); color: var(--soft); border-radius: 999px; padding: 2px 9px;
  font-size: 11.5px; line-height: 1.5; white-space: nowrap;
}
.sy-chip.good { color: var(--good); }
.sy-chip.warn { color: var(--warn); }
.sy-chip.bad { color: var(--bad); }
.sy-chip.live { color: var(--accent); }
.sy-dot::before {
  content: ""; display: inline-block; width: 7px; height: 7px; border-radius: 50%;
  margin-right: 6px; background: currentColor; vertical-align: 1px;
}

/* job list */
.sy-jobs {
  display: flex; flex-direction: column; gap: 6px; width: 100%;
  max-height: calc(100vh - 150px); overflow: auto;
}
.sy-job {
  display: block; width: 100%; flex: none; padding: 8px 10px; text-align: left; cursor: pointer; color: inherit;
  font: inherit; background: var(--card); border: 1px solid var(--line); border-radius: 8px;
}
.sy-job:hover { border-color: var(--accent); }
.sy-job:focus-visible { outline: 2px solid var(--accent); outline-offset: -2px; }
.sy-job.sy-on { border-color: var(--accent); box-shadow: inset 3px 0 0 var(--accent); }

/* job panel */
.sy-control { display: flex; flex-flow: row wrap; align-items: center; gap: 10px; }
.sy-variant { min-width: 112px; }
.sy-tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(128px, 1fr)); gap: 10px; width: 100%; }
.sy-tile { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 7px 12px; }
.sy-tile .k { color: var(--soft); font-size: 11.5px; }
.sy-tile .v {
  font-size: 20px; font-weight: 620; font-variant-numeric: tabular-nums; line-height: 1.3; white-space: nowrap;
}
.sy-tile .s {
  color: var(--soft); font-size: 11.5px; line-height: 17px; min-height: 17px; overflow-wrap: anywhere;
}
.sy-charts { display: grid; grid-template-columns: repeat(6, minmax(0, 1fr)); gap: 10px; width: 100%; }
.sy-charts > .w6 { grid-column: span 6; }
.sy-charts > .w4 { grid-column: span 4; }
.sy-charts > .w2 { grid-column: span 2; }
.sy-stack { display: flex; flex-direction: column; }
.sy-chart { width: 100%; height: auto !important; min-height: 210px; flex: 1 1 auto; }
.sy-chart.tall { min-height: 244px; }
.sy-banner {
  width: 100%; padding: 8px 12px; font-size: 13px; white-space: pre-wrap; overflow-wrap: anywhere;
  background: var(--card); border: 1px solid var(--line); border-left: 4px solid var(--bad); border-radius: 8px;
}
.sy-banner.warn { border-left-color: var(--warn); }
.sy-log { font-family: ui-monospace, monospace; font-size: 11.5px; color: var(--soft); margin-top: 6px; }
.sy-empty { text-align: center; padding: 70px 20px; color: var(--soft); }

/* experiments */
.sy-results {
  display: flex; flex-direction: column; gap: 10px; width: 100%; max-width: 980px; margin: 0 auto; padding: 14px 20px;
}
.sy-claims { margin: 6px 0 0; padding: 0; list-style: none; font-size: 13px; }
.sy-claims li { display: flex; gap: 8px; align-items: baseline; padding: 2px 0; }

/* dialogs */
.sy-dialog { width: 560px; max-width: 94vw; padding: 18px 20px; background: var(--card); color: var(--text); }
.sy-form { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 6px 14px; width: 100%; }
.sy-form .full { grid-column: 1 / -1; }

@media (max-width: 1100px) {
  .sy-charts > .w4, .sy-charts > .w2 { grid-column: 1 / -1; }
}
@media (max-width: 820px) {
  .sy-main { grid-template-columns: minmax(0, 1fr); padding: 12px; gap: 12px; }
  .sy-jobs { max-height: 190px; }
  .sy-top { padding: 6px 12px !important; gap: 4px 8px; flex-wrap: wrap; }
  .sy-switches { order: 1; width: 100%; }
  .sy-form { grid-template-columns: minmax(0, 1fr); }
}
"""
