"""How the report looks: light or dark as the reader's system asks, on screens from a phone's up, and on paper."""

# Text and lines against their ground: at least 4.5 to 1 for letters, 3 to 1 for marks, in both (WCAG 2.2; tested).
LIGHT = {
  "ground": "#ffffff",
  "panel": "#f5f6f8",
  "text": "#1a1d21",
  "faint": "#565e69",
  "rule": "#d5d9df",
  "band": "#e4ebf5",
  "link": "#1553b7",
  "ours": "#1553b7",
  "paper": "#9a4a00",
  "good": "#11693c",
  "bad": "#b3261e",
  "c0": "#1f63d1",
  "c1": "#b45309",
  "c2": "#12805c",
  "c3": "#8b3fc7",
  "c4": "#c2255c",
}
DARK = {
  "ground": "#14171b",
  "panel": "#1d2127",
  "text": "#e7e9ec",
  "faint": "#a4acb8",
  "rule": "#383e47",
  "band": "#232e40",
  "link": "#8ab8ff",
  "ours": "#7fb2ff",
  "paper": "#f0ac6b",
  "good": "#6fd3a0",
  "bad": "#ff9d94",
  "c0": "#7fb2ff",
  "c1": "#f0ac6b",
  "c2": "#5ccfa3",
  "c3": "#c79bf2",
  "c4": "#f58ab1",
}


def _variables(colours: dict[str, str]) -> str:
  return "".join(f"--{name}:{colour};" for name, colour in colours.items())


def style_sheet() -> str:
  return (
    f":root{{color-scheme:light dark;{_variables(LIGHT)}}}"
    f"@media screen and (prefers-color-scheme:dark){{:root{{{_variables(DARK)}}}}}{_LAYOUT}"
  )


_LAYOUT = """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0 auto;max-width:75rem;padding:1.5rem 1.25rem 4rem;background:var(--ground);color:var(--text);
  font:1rem/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif;overflow-wrap:break-word}
h1{font-size:1.75rem;line-height:1.2;margin:.5rem 0}
h2{font-size:1.3rem;line-height:1.25;margin:3rem 0 .75rem;padding-top:1rem;border-top:1px solid var(--rule)}
h3{font-size:1.05rem;margin:1.75rem 0 .5rem}
p,ul{max-width:46rem;margin:.6rem 0}
ul{padding-left:1.25rem}
li{margin:.3rem 0}
a{color:var(--link)}
a:focus-visible,summary:focus-visible,.scroll:focus-visible{outline:2px solid var(--link);outline-offset:2px}
nav ul{display:flex;flex-wrap:wrap;gap:.25rem 1.1rem;padding:0;margin:1rem 0;list-style:none;max-width:none}
.lead{font-size:1.08rem}
main>section:first-child h2{border:0;margin-top:.5rem}
.note,figcaption{color:var(--faint);font-size:.875rem}
figcaption{max-width:60rem;margin-top:.5rem}
.scroll{overflow-x:auto;border:1px solid var(--rule);border-radius:.5rem}
table{border-collapse:separate;border-spacing:0;width:100%;font-size:.875rem;line-height:1.25rem;
  font-variant-numeric:tabular-nums}
th,td{padding:.375rem .625rem;text-align:right;white-space:nowrap;border-bottom:1px solid var(--rule)}
thead th{background:var(--panel);font-weight:600;vertical-align:bottom}
thead th.group{text-align:center}
th.group,.first{border-left:1px solid var(--rule)}
tbody tr:last-child>*{border-bottom:0}
th[scope=row],thead tr:first-child th:first-child{position:sticky;left:0;z-index:1;text-align:left;
  background:var(--ground)}
thead tr:first-child th:first-child{background:var(--panel)}
th[scope=row]{font-weight:400;white-space:normal;min-width:8.5rem;max-width:17rem}
.dense{font-size:.8125rem}
.dense th,.dense td{padding:.375rem .35rem}
.dense .seeds{padding-left:0}
tr.baseline>*{background:var(--panel)}
tr.reference th{font-style:italic}
tr.total>*{font-weight:600;border-top:1px solid var(--rule)}
td.text,th.text{text-align:left;white-space:normal}
td small{color:var(--faint);font-size:inherit}
.seeds{color:var(--faint);font-weight:400;text-align:left;padding-left:0}
thead th.seeds{color:var(--faint);font-weight:400}
.missing,.faint{color:var(--faint)}
.clear{font-weight:600}
.claims{list-style:none;padding:0;max-width:none}
.claims li{display:grid;grid-template-columns:7rem 1fr;gap:.2rem .5rem;padding:.45rem 0;margin:0;
  border-bottom:1px solid var(--rule)}
.verdict{white-space:nowrap;font-weight:600}
.agrees{color:var(--good)}.disagrees{color:var(--bad)}.mixed{color:var(--paper)}
.undecided,.not-run{color:var(--faint)}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,25rem),1fr));gap:1.25rem;margin:1rem 0}
.plots h4{font-size:.95rem;margin:0 0 .3rem}
figure{margin:1rem 0}
.plot{display:block;width:100%;max-width:30rem;height:auto}
.plot text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif;fill:var(--text);
  font-variant-numeric:tabular-nums}
.plot text.faint{fill:var(--faint)}
.plot .grid{stroke:var(--rule);stroke-width:1}
.plot .zero{stroke:var(--faint);stroke-width:1}
.plot .band{fill:var(--band)}
.plot .seed{stroke:var(--ours);stroke-width:1.5}
.ours{fill:var(--ours);stroke:var(--ground);stroke-width:1}
.paper{fill:var(--ground);stroke:var(--paper);stroke-width:2}
.line{fill:none;stroke-width:2.25;stroke-linejoin:round}
.line[data-seed]{stroke-width:.9;opacity:.55}
.c0{stroke:var(--c0)}.c1{stroke:var(--c1)}.c2{stroke:var(--c2)}.c3{stroke:var(--c3)}.c4{stroke:var(--c4)}
.curves{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,21rem),30rem));gap:.5rem 2rem;
  align-items:start}
.legend{list-style:none;padding:0;max-width:24rem;margin:.25rem 0;font-size:.875rem}
.legend li{display:flex;gap:.6rem;align-items:center;margin:.2rem 0}
.legend svg{flex:none;width:2.2rem;height:.8rem}
.legend .end{margin-left:auto;padding-left:1rem;font-variant-numeric:tabular-nums}
.key svg{width:.95rem;height:.8rem;vertical-align:-.05rem}
.examples{display:grid;gap:1rem;margin:1rem 0}
.examples section{background:var(--panel);border-radius:.5rem;padding:.75rem 1rem}
.examples h3{margin:0 0 .4rem}
.examples dl{display:grid;grid-template-columns:4.2rem 1fr;gap:.3rem .8rem;margin:0;font-size:.92rem}
.examples dt{color:var(--faint)}
.examples dd{margin:0}
.examples b{color:var(--ours)}
details{margin:.75rem 0}
summary{cursor:pointer}
pre{overflow-x:auto;background:var(--panel);border-radius:.5rem;padding:.75rem 1rem;font-size:.8rem}
@media (max-width:40rem){
  body{padding:1rem .9rem 3rem}
  h1{font-size:1.45rem}
  .claims li{grid-template-columns:1fr}
  .examples dl{grid-template-columns:1fr;gap:.1rem}
  .examples dd{margin-bottom:.4rem}
  th[scope=row]{min-width:7.5rem;max-width:9.5rem}
  th.recipe{min-width:11rem;max-width:11rem}
}
@page{size:landscape;margin:12mm}
@media print{
  body{max-width:none;padding:0;font-size:9.5pt}
  nav,.download{display:none}
  .scroll{overflow:visible;border:0}
  table,.dense{font-size:7.5pt;line-height:1.3}
  th,td{padding:.15rem .3rem}
  .dense{font-size:6.5pt}
  .dense th,.dense td{padding:.15rem .2rem}
  th[scope=row],thead tr:first-child th:first-child{position:static}
  figure,tr,.examples section,.plots>div{break-inside:avoid}
  h2,h3,h4{break-after:avoid}
  details::details-content{content-visibility:visible;block-size:auto}
}
"""
