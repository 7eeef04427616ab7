"""A plain page: one self-contained file, no script, no network.

Figures are small inline drawings: a dot for the value, a bar for its interval, a dashed line for
what no leak would give. Colours follow the reader's light or dark setting.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from fedaudit.report.curves import figure
from fedaudit.report.findings import against, interval, number, words_for
from fedaudit.report.text import cell, figures
from fedaudit.results import AuditResult, Bound, Estimate, Finding

VERDICTS = {
    "disagreement": "theory and measurement disagree",
    "leak": "leak",
    "no_evidence": "no evidence",
    "not_applicable": "not applicable",
}

_STYLE = """
:root{color-scheme:light dark;--page:#fff;--ink:#1b1c1e;--soft:#5a5f66;--line:#d9dce1;
--leak:#b3261e;--none:#3d5a80;--odd:#7b1fa2;--na:#5a5f66;--dot:#1f5fa8;--chance:#8a5a00}
@media (prefers-color-scheme:dark){:root{--page:#16181b;--ink:#e8e9eb;--soft:#a4aab2;--line:#353a41;
--leak:#ff8a80;--none:#9db7d5;--odd:#d79bf0;--na:#a4aab2;--dot:#8fc1ff;
--chance:#f0c060}}
*{box-sizing:border-box}
body{font:16px/1.5 system-ui,"DejaVu Sans",sans-serif;color:var(--ink);background:var(--page);
max-width:68rem;margin:2rem auto 4rem;padding:0 1rem;overflow-wrap:break-word}
h1{font-size:1.7rem;line-height:1.2;margin:0 0 1rem}h2{font-size:1.25rem;margin:2.4rem 0 .6rem}
h3{font-size:1rem;margin:1.4rem 0 .4rem}p{margin:.4rem 0}
dl{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:.2rem 1.2rem;margin:0}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.92rem}
th{font-weight:600;color:var(--soft);border-bottom:2px solid var(--line);white-space:nowrap}
td{border-bottom:1px solid var(--line)}
th,td{text-align:left;padding:.45rem .8rem .45rem 0;vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}td.n{white-space:nowrap}
.small{font-size:.85rem;color:var(--soft)}.value{font-variant-numeric:tabular-nums}
.mark{display:inline-block;font-weight:700;border-left:4px solid;padding-left:.5rem}
.leak{color:var(--leak)}.no_evidence{color:var(--none)}.disagreement{color:var(--odd)}
.not_applicable{color:var(--na)}
.count{display:inline-block;margin:0 1.4rem .6rem 0}.count b{font-size:1.25rem}
.help{border-left:4px solid var(--line);padding-left:.6rem;margin:.4rem 0}
svg{display:block;max-width:100%;height:auto}svg text{font-size:11px;fill:var(--soft)}
.axis{stroke:var(--line)}.bar{stroke:var(--dot);stroke-width:3}.dot{fill:var(--dot)}
.chance{stroke:var(--chance);stroke-width:2;stroke-dasharray:3 2}
.bound{stroke:var(--odd);stroke-width:2}
.figures{display:flex;flex-wrap:wrap;gap:0 2rem}figure{margin:0 0 1rem;width:26rem;max-width:100%}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;align-items:center;margin:.3rem 0}
.legend span{display:inline-flex;align-items:center;gap:.4rem}
.clients td:first-child{white-space:nowrap}.headline td:last-child{min-width:20rem}
.scores td:last-child{min-width:12rem}
@media (max-width:44rem){.cards thead{display:none}.headline td:last-child{min-width:0}
.cards,.cards tbody,.cards tr,.cards td{display:block;width:100%}
.cards tr{border-bottom:2px solid var(--line);padding:.6rem 0}
.cards td{border:0;padding:.15rem 0}}
@media print{body{max-width:none;margin:0}.wide{overflow:visible}section{break-inside:avoid}}
"""

# nothing may be loaded or run, whatever a trace's strings hold
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(
    summary: Mapping[str, str],
    findings: Sequence[Finding],
    results: Sequence[AuditResult],
    evidence: Mapping[str, str],
) -> str:
    """The whole report as one HTML document."""
    body = [
        "<h1>What this federation gives away</h1>",
        _definitions(summary),
        "<h2>Findings</h2>",
        _counts(findings),
        _findings(findings),
        _legend(),
    ]
    body += [_audit(result) for result in results]
    body += ["<h2>Evidence</h2>", _definitions(evidence)]
    whole = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>fedaudit report</title><style>{_STYLE}</style></head>\n"
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )
    # half a surrogate pair, as JSON can hold, has no place in a file
    return whole.encode("utf-8", "replace").decode("utf-8")


# -- parts ----------------------------------------------------------------------------------------


def _definitions(pairs: Mapping[str, str]) -> str:
    rows = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in pairs.items())
    return f"<dl>{rows}</dl>"


def _table(
    head: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool], kind: str = ""
) -> str:
    """`head` is text, the cells of `rows` are HTML."""

    def line(cells: Sequence[str], tag: str) -> str:
        marks = [' class="n"' if n else "" for n in numeric]
        return "".join(f"<{tag}{m}>{c}</{tag}>" for c, m in zip(cells, marks, strict=True))

    body = "".join(f"<tr>{line(r, 'td')}</tr>" for r in rows)
    top = "".join(
        f'<th scope="col"{" class=n" if n else ""}>{escape(h)}</th>'
        for h, n in zip(head, numeric, strict=True)
    )
    marked = f' class="{kind}"' if kind else ""
    return (
        f'<div class="wide" tabindex="0" role="group"><table{marked}><thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _counts(findings: Sequence[Finding]) -> str:
    out = []
    for verdict, words in VERDICTS.items():
        many = sum(f.verdict == verdict for f in findings)
        if many:
            out.append(
                f'<span class="count"><b class="{verdict}">{many} &times;</b> {words}</span>'
            )
    return f"<p>{''.join(out)}</p>"


def _findings(findings: Sequence[Finding]) -> str:
    rows = []
    for f in findings:
        percent = words_for(f.audit).percent and f.verdict != "disagreement"
        verdict = f'<span class="mark {f.verdict}">{VERDICTS[f.verdict]}</span>'
        verdict += f'<br><span class="small">{escape(f.audit)}, seen by {escape(f.vantage)}</span>'
        what = f"<b>{escape(f.question)}</b><br>{escape(f.statement)}"
        if f.remedy:
            what += f'<p class="help">What helps: {escape(f.remedy)}</p>'
        what += f' <span class="small">Rule: {escape(f.rule)}. Source: {escape(f.source)}.</span>'
        value = '<span class="small">not measured</span>'
        if f.estimate is not None:
            base, n = against(f.estimate, percent), f.estimate.n
            value = f'<b class="value">{_joined(interval(f.estimate, percent))}</b><br>'
            value += f'<span class="small">{escape(f.measure or "")}<br>'
            value += f"{_joined(f'chance {base}; n = {n}')}</span>"
            value += _dot(f.estimate, percent=percent, width=260)
        rows.append([verdict, what, value])
    head = ["verdict", "question and answer", "measured, with interval"]
    return _table(head, rows, [False, False, False], "cards headline")


def _legend() -> str:
    def key(shape: str, words: str) -> str:
        return f'<span><svg width="26" height="12" aria-hidden="true">{shape}</svg>{words}</span>'

    dot = (
        '<line class="bar" x1="1" x2="25" y1="6" y2="6"/><circle class="dot" cx="13" cy="6" r="4"/>'
    )
    return (
        '<p class="legend small">'
        + key(dot, "value and interval")
        + key('<line class="chance" x1="13" x2="13" y1="0" y2="12"/>', "chance: no leak at all")
        + key('<line class="bound" x1="13" x2="13" y1="0" y2="12"/>', "bound from theory")
        + "</p>"
    )


def _audit(result: AuditResult) -> str:
    parts = [f"<h2>{escape(result.audit)}</h2><p>{escape(result.question)}</p>"]
    if result.not_applicable:
        parts.append(f"<p>Not applicable: {escape(result.not_applicable)}</p>")
    if result.notes:
        parts.append("<ul>" + "".join(f"<li>{escape(n)}</li>" for n in result.notes) + "</ul>")
    for missing in result.underpowered:
        parts.append(f"<p>{escape(str(missing))}</p>")
    if result.estimates:
        parts.append(_estimates(result))
    if result.bounds:
        rows = [
            [
                escape(name),
                escape(b.kind),
                escape(cell(b.value)),
                escape(b.of),
                escape(b.source),
                escape(b.assumes),
            ]
            for name, b in result.bounds.items()
        ]
        head = ["bound", "kind", "value", "of", "source", "holds if"]
        parts.append(_table(head, rows, [False, False, True, False, False, False]))
    drawn = "".join(figure(name, columns) for name, columns in result.curves.items())
    if drawn:
        parts.append(f'<div class="figures">{drawn}</div>')
    if result.per_client:
        parts += ["<h3>Per client</h3>", _clients(result)]
    settings = ", ".join(f"{k} = {_word(v)}" for k, v in result.settings.items() if v is not None)
    parts.append(f'<p class="small">Settings: {escape(settings)}</p>')
    return "<section>" + "".join(parts) + "</section>"


def _joined(text: str) -> str:
    """A number stays on the line of its unit."""
    return escape(text).replace(" %", "&nbsp;%").replace("n = ", "n&nbsp;=&nbsp;")


def _word(value: object) -> str:
    return " ".join(map(str, value)) or "none" if isinstance(value, list | tuple) else str(value)


def _estimates(result: AuditResult) -> str:
    rows = []
    for name, e in result.estimates.items():
        bounds = [b for b in result.bounds.values() if b.of == name]
        numbers = [escape(f) for f in figures(e)]
        rows.append([escape(name), *numbers, str(e.n), _dot(e, bounds=bounds), escape(e.method)])
    head = ["score", "value", "low", "high", "chance", "n", "", "interval by"]
    return _table(head, rows, [False, True, True, True, True, True, False, False], "scores")


def _clients(result: AuditResult) -> str:
    columns = list(next(iter(result.per_client.values())))
    drawn = next(
        (c for c in ("share", "value", "estimate") if {c, "low", "high"} <= {*columns}), ""
    )
    rows = []
    for name, row in result.per_client.items():
        cells = [escape(name), *(escape(cell(row.get(c))) for c in columns)]
        if drawn:
            values = [row.get(c) for c in (drawn, "low", "high")]
            plain = [float(v) for v in values if isinstance(v, int | float)]
            cells.append(_client_dot(result, plain) if len(plain) == 3 else "")
        rows.append(cells)
    numeric = [False, *([True] * len(columns)), *([False] if drawn else [])]
    return _table(["client", *columns, *([""] if drawn else [])], rows, numeric, "clients")


def _client_dot(result: AuditResult, plain: Sequence[float]) -> str:
    headline = result.estimates[result.headline] if result.headline else None
    own = Estimate(
        value=plain[0],
        low=min(plain[1], plain[2]),
        high=max(plain[1], plain[2]),
        n=0,
        baseline=None if headline is None else headline.baseline,
    )
    return _dot(own, percent=words_for(result.audit).percent, labels=False)


# -- drawings -------------------------------------------------------------------------------------


def _dot(
    e: Estimate,
    *,
    percent: bool = False,
    bounds: Sequence[Bound] = (),
    width: int = 180,
    labels: bool = True,
) -> str:
    """A dot with its interval on an axis, the chance level, and bounds where there are any."""
    shares = e.low >= 0 and e.high <= 1 and (e.baseline is None or 0 <= e.baseline <= 1)
    marks = [e.value, e.low, e.high, *([] if e.baseline is None else [e.baseline])]
    marks += [b.value for b in bounds]
    finite = [m for m in marks if math.isfinite(m)] or [0.0]
    if shares and all(0 <= m <= 1 for m in finite):
        left, right = 0.0, 1.0
    else:
        left, right = min(0.0, *finite), max(finite)
        if right <= left:
            right = left + 1.0
    inner = width - 20

    def x(value: float) -> str:
        inside = min(max(value, left), right)
        return f"{10 + inner * (inside - left) / (right - left):.1f}"

    words = f"{interval(e, percent)}, chance {against(e, percent)}"
    parts = [f'<line class="axis" x1="10" x2="{width - 10}" y1="10" y2="10"/>']
    if e.baseline is not None:
        at = x(e.baseline)
        parts.append(f'<line class="chance" x1="{at}" x2="{at}" y1="2" y2="18"/>')
    for b in bounds:
        at = x(b.value)
        parts.append(f'<line class="bound" x1="{at}" x2="{at}" y1="2" y2="18"/>')
    parts.append(f'<line class="bar" x1="{x(e.low)}" x2="{x(e.high)}" y1="10" y2="10"/>')
    parts.append(f'<circle class="dot" cx="{x(e.value)}" cy="10" r="4"/>')
    height = 20
    if labels:
        height = 32
        parts.append(f'<text x="10" y="30">{number(left, percent)}</text>')
        parts.append(
            f'<text x="{width - 10}" y="30" text-anchor="end">{number(right, percent)}</text>'
        )
    return (
        f'<svg role="img" aria-label="{escape(words)}" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">{"".join(parts)}</svg>'
    )
