"""Which colours and measures does a page have? For light and dark screens, and for paper."""

from __future__ import annotations

from typing import Final

_LIGHT = """
--paper:#fdfdfb; --ink:#1d2125; --soft:#5c6570; --rule:#dfe1dd; --ground:#eceeea; --stripe:#f5f6f3;
--accent:#2b5f8f; --good:#2e7d4f; --bad:#b3261e; --quiet:#b4bac0; --bad-ground:#fbeceb; --good-ground:#e9f4ed;
--c0:#2b5f8f; --c1:#c2641a; --c2:#2e7d6b; --c3:#8a4b9c; --c4:#8f7a1e; --c5:#5c6570;
"""

_DARK = """
--paper:#15181b; --ink:#e6e8e6; --soft:#9aa3ab; --rule:#30363b; --ground:#24292e; --stripe:#1b1f23;
--accent:#7fb2e0; --good:#6cc08d; --bad:#f08a82; --quiet:#59626a; --bad-ground:#3a2220; --good-ground:#1d3226;
--c0:#7fb2e0; --c1:#eda05f; --c2:#67c2ad; --c3:#c893d8; --c4:#d4bf5c; --c5:#9aa3ab;
"""

_TEXT = """
*{box-sizing:border-box}
body{margin:0 auto;max-width:56rem;padding:3rem 1.5rem 5rem;background:var(--paper);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","DejaVu Sans",sans-serif;
-webkit-text-size-adjust:100%}
h1{font-size:1.75rem;line-height:1.25;font-weight:650;letter-spacing:-.01em;margin:.2rem 0 1rem;overflow-wrap:anywhere}
h2{font-size:1.2rem;font-weight:650;margin:3rem 0 .6rem;padding-top:1rem;border-top:1px solid var(--rule)}
h3{font-size:.95rem;font-weight:600;margin:1.8rem 0 .5rem}
p{max-width:44rem;margin:.5rem 0;overflow-wrap:anywhere}
.made{color:var(--soft);font-size:.85rem;margin:0}
.verdict{font-size:1.08rem;padding:.7rem 1rem;background:var(--ground);border-left:4px solid var(--soft);max-width:none}
.verdict.good{background:var(--good-ground);border-color:var(--good)}
.verdict.bad{background:var(--bad-ground);border-color:var(--bad)}
.verdict.good span{color:var(--good);font-weight:700}
.verdict.bad span{color:var(--bad);font-weight:700}
.note{color:var(--soft);font-size:.88rem}
"""

_FIGURES = """
.figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(9.5rem,1fr));gap:1.4rem 1.5rem;margin:2rem 0 0}
.figures dt{color:var(--soft);font-size:.85rem}
.figures dd{margin:0;font-size:1.5rem;font-weight:600;line-height:1.3;font-variant-numeric:tabular-nums;
overflow-wrap:anywhere}
.figures .of{font-size:.85rem;font-weight:400;color:var(--soft);white-space:nowrap}
.figures .good dd{color:var(--good)}
.figures .bad dd{color:var(--bad)}
.figures .quiet dd{color:var(--soft)}
"""

_TABLES = """
.scroll{overflow:auto;max-height:40rem}
.scroll:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
table{border-collapse:collapse;font-size:.88rem;line-height:1.4;font-variant-numeric:tabular-nums}
th,td{padding:.34rem 1.4rem .34rem 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--rule)}
th:last-child,td:last-child{padding-right:.4rem}
th{position:sticky;top:0;background:var(--paper);color:var(--soft);font-weight:500;white-space:nowrap}
td{max-width:34rem;overflow-wrap:break-word}
.short{white-space:nowrap}
.number{text-align:right;white-space:nowrap}
tr.bad td{background:var(--bad-ground)}
tr.bad td:first-child::before{content:"✗ ";color:var(--bad);font-weight:700}
tr.good td:first-child::before{content:"✓ ";color:var(--good);font-weight:700}
tr.quiet td{color:var(--soft)}
"""

_PLOTS = """
.plot{margin:1.8rem 0 0}
.plot figcaption{font-size:.95rem;font-weight:600;margin-bottom:.7rem}
.plot svg{display:block;width:100%;height:auto;overflow:visible}
.plot text{font-size:12px;fill:var(--ink);font-variant-numeric:tabular-nums}
.plot .tick,.plot .unit{fill:var(--soft)}
.plot .value{font-weight:600}
.grid{stroke:var(--rule);stroke-width:1}
.zero,.axis{stroke:var(--soft);stroke-width:1}
.spread{stroke:var(--ink);stroke-width:1.5}
.ground{fill:var(--ground)}
.fill{fill:var(--accent)} .fill-good{fill:var(--good)} .fill-bad{fill:var(--bad)} .fill-quiet{fill:var(--quiet)}
[class^=line-]{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.plot [class^=name-]{font-weight:600}
details{margin:.4rem 0 0;font-size:.88rem}
summary{color:var(--soft);cursor:pointer;width:fit-content}
"""

_COLOURS = "".join(
    f".line-{n}{{stroke:var(--c{n})}} .dot-{n},.area-{n},.plot .name-{n}{{fill:var(--c{n})}}\n" for n in range(6)
)

_PAPER = """
body{max-width:none;padding:0;font-size:10.5pt}
.scroll{overflow:visible;max-height:none}
th{position:static}
tr,.plot,.figures div{break-inside:avoid}
h2,h3,figcaption{break-after:avoid}
details{display:none}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}
"""

STYLES: Final = (
    f":root{{color-scheme:light dark;{_LIGHT}}}\n"
    f"@media screen and (prefers-color-scheme:dark){{:root{{{_DARK}}}}}\n"
    f"{_TEXT}{_FIGURES}{_TABLES}{_PLOTS}{_COLOURS}@media print{{{_PAPER}}}"
)
