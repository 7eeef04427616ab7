"""A plain page: one self-contained file, no script, no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from fedaudit.report.findings import interval, number, words_for
from fedaudit.report.text import cell
from fedaudit.results import AuditResult, Finding

VERDICTS = {
    "disagreement": "theory and measurement disagree",
    "leak": "leak",
    "no_evidence": "no evidence",
    "not_applicable": "not applicable",
}

_STYLE = """
:root{color-scheme:light dark;--line:#8886;--leak:#b3261e;--none:#1b6e3c;--odd:#7b1fa2}
@media (prefers-color-scheme:dark){:root{--leak:#ff8a80;--none:#7bd89b;--odd:#d79bf0}}
body{font:16px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2.2rem}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.92rem}
th,td{text-align:left;padding:.35rem .6rem;border-bottom:1px solid var(--line);vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
.leak{color:var(--leak);font-weight:600}.no_evidence{color:var(--none);font-weight:600}
.disagreement{color:var(--odd);font-weight:600}.small{font-size:.85rem;opacity:.8}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1rem}dt{font-weight:600}dd{margin:0}
code{overflow-wrap:anywhere}
@media print{body{max-width:none;margin:0}}
"""


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
        _findings(findings),
    ]
    for result in results:
        body.append(_audit(result))
    body += ["<h2>Evidence</h2>", _definitions(evidence)]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>fedaudit report</title><style>{_STYLE}</style></head>\n"
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def _definitions(pairs: Mapping[str, str]) -> str:
    rows = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in pairs.items())
    return f"<dl>{rows}</dl>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        marks = [' class="n"' if n else "" for n in numeric]
        return "".join(f"<{tag}{m}>{c}</{tag}>" for c, m in zip(cells, marks, strict=True))

    body = "".join(f"<tr>{line(r, 'td')}</tr>" for r in rows)
    top = line([escape(h) for h in head], "th")
    return (
        f'<div class="wide" tabindex="0"><table><thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _findings(findings: Sequence[Finding]) -> str:
    rows = []
    for f in findings:
        percent = words_for(f.audit).percent and f.verdict != "disagreement"
        value = baseline = ""
        if f.estimate is not None:
            value = interval(f.estimate, percent)
            value += f'<br><span class="small">n = {f.estimate.n}</span>'
            if f.estimate.baseline is not None:
                baseline = number(f.estimate.baseline, percent)
        what = f"<b>{escape(f.question)}</b><br>{escape(f.statement)}"
        what += f'<br><span class="small">{escape(f.source)}</span>'
        if f.remedy:
            what += f"<br>What helps: {escape(f.remedy)}"
        verdict = f'<span class="{f.verdict}">{VERDICTS[f.verdict]}</span>'
        verdict += f'<br><span class="small">{escape(f.rule)}</span>'
        rows.append([what, verdict, value, baseline, escape(f.vantage)])
    head = ["question and answer", "verdict and its rule", "measured", "chance", "seen by"]
    return _table(head, rows, [False, False, False, True, False])


def _audit(result: AuditResult) -> str:
    parts = [f"<h2>{escape(result.audit)}</h2><p>{escape(result.question)}</p>"]
    if result.not_applicable:
        parts.append(f"<p>Not applicable: {escape(result.not_applicable)}</p>")
    if result.notes:
        parts.append("<ul>" + "".join(f"<li>{escape(n)}</li>" for n in result.notes) + "</ul>")
    for missing in result.underpowered:
        parts.append(f"<p>{escape(str(missing))}</p>")
    if result.estimates:
        rows = [
            [
                escape(name),
                f"{e.value:.4g}",
                f"{e.low:.4g}",
                f"{e.high:.4g}",
                "" if e.baseline is None else f"{e.baseline:.4g}",
                str(e.n),
                escape(e.method),
            ]
            for name, e in result.estimates.items()
        ]
        head = ["score", "value", "low", "high", "chance", "n", "interval by"]
        parts.append(_table(head, rows, [False, True, True, True, True, True, False]))
    if result.bounds:
        rows = [
            [
                escape(name),
                b.kind,
                f"{b.value:.4g}",
                escape(b.of),
                escape(b.source),
                escape(b.assumes),
            ]
            for name, b in result.bounds.items()
        ]
        head = ["bound", "kind", "value", "of", "source", "holds if"]
        parts.append(_table(head, rows, [False, False, True, False, False, False]))
    if result.per_client:
        columns = list(next(iter(result.per_client.values())))
        rows = [
            [escape(name), *(escape(cell(row.get(c))) for c in columns)]
            for name, row in result.per_client.items()
        ]
        parts.append("<h3>Per client</h3>")
        parts.append(_table(["client", *columns], rows, [False, *([True] * len(columns))]))
    settings = ", ".join(f"{k} = {v}" for k, v in result.settings.items())
    parts.append(f'<p class="small">Settings: {escape(settings)}</p>')
    return "<section>" + "".join(parts) + "</section>"
