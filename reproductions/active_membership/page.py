"""The page: what was published and what was measured, from stored results alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedaudit.audits.active_membership import theory
from fedaudit.files import write_atomically
from reproductions.active_membership import experiments, prose
from reproductions.active_membership.figures import COMPANION, figures
from reproductions.active_membership.results import (
    MECHANISMS,
    Measured,
    Results,
    cell,
    named,
    number,
    table,
)
from reproductions.active_membership.setting import PUBLISHED_DIMENSION

PUBLISHED: Mapping[str, Any] = json.loads(
    Path(__file__).with_name("published.json").read_text(encoding="utf-8")
)
LARGE = 0.99
"""What the summary takes for "near 100 %"."""


# -- published and measured, in short -------------------------------------------------------------


def _first(r: Results, name: str, mechanism: str, key: str, least: float = LARGE) -> str:
    """The smallest measured epsilon from which on a success rate is at least so large."""
    found = r.over("fc", name, mechanism)
    good = [i for i, (_, v) in enumerate(found) if v[key][0] < least]
    start = good[-1] + 1 if good else 0
    return f"{found[start][0]:g}" if start < len(found) else f"beyond {found[-1][0]:g}"


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.3f} to {max(values):.3f}"


def summary_section(r: Results) -> str:
    rows: list[Sequence[str]] = []
    name = "cifar10"
    bits = dict(r.over("fc", name, "bitrand"))
    if bits:
        rows.append(
            [
                "FC, BitRand, CIFAR-10",
                '"near 100 %" as eps approaches 6',
                f"at least {LARGE:.2f} from eps {_first(r, name, 'bitrand', 'tuned')} with tau "
                f"tuned, from eps {_first(r, name, 'bitrand', 'theory')} at tau = Delta",
            ]
        )
    if 8.0 in bits and 6.0 in bits:
        rows.append(
            [
                "its lower bound (Theorem 1)",
                "meets success of about 100 % at eps 8",
                f"{bits[6.0]['theorem 1'][1]:.3f} at 6, {bits[8.0]['theorem 1'][1]:.3f} at 8",
            ]
        )
    below = [(e, v) for e, v in bits.items() if v["tuned"][0] < 0.8]
    if bits:
        e, v = below[-1] if below else min(bits.items())
        lost = 100 * (v["accuracy without"][0] - v["accuracy"][0])
        cost = f"{lost:.1f} points lost"
        asked = (r.of("utility", name, "bitrand") or {}).get(f"{e:g}")
        if asked:
            more = 100 * (v["accuracy without"][0] - asked[0])
            cost += f" ({more:.1f} where the test is protected as well)"
        rows.append(
            [
                "accuracy at success below 80 %",
                "at least 20 points lost",
                f"{cost} at eps {e:g}, where success is {cell(v['tuned'])}",
            ]
        )
    for mechanism in ("grr", "rappor", "dbitflip"):
        if r.over("fc", name, mechanism):
            rows.append(
                [
                    f"FC, {named(mechanism)}, CIFAR-10",
                    "approaching 100 % at eps 5, its bound at 6",
                    f"at least {LARGE:.2f} from eps {_first(r, name, mechanism, 'tuned')}; at tau "
                    f"= Delta from eps {_first(r, name, mechanism, 'theory')}",
                ]
            )
    ome = r.over("fc", name, "ome")
    if ome:
        won, right = ([v[k][0] for _, v in ome] for k in ("tuned", "accuracy"))
        said = f"success {_range(won)}, accuracy {_range(right)}"
        asked = r.of("utility", name, "ome")
        if asked:
            said += f" ({_range([t[0] for t in asked.values()])} on protected records)"
        rows.append(
            ["OME (Figure 15)", "success high and accuracy low, both nearly constant", said]
        )
    told = []
    for kind, words in (("attention", ""), ("wide", f", {PUBLISHED_DIMENSION} dimensions")):
        for variant in r.variants(kind, name):
            count, batch, mechanism, epsilon = variant.split()
            if (mechanism, epsilon) == ("bitrand", "3"):
                value = cell((r.of(kind, name, variant) or {})["success"])
                told.append(f"N = {count}, batch {batch}{words}: {value}")
    if told:
        claim = "approaches 100 %, whatever the batch size"
        rows.append(["attention, BitRand, eps 3", claim, "; ".join(told)])
    gaps = _gaps(r)
    for adversary in ("fc", "attention"):
        if gaps[adversary]:
            mean = sum(gaps[adversary]) / len(gaps[adversary])
            rows.append(
                [
                    f"Tables 4 to 6, {adversary}",
                    "mean of four models; here the alphabet's size was chosen to fit"
                    if adversary == "attention"
                    else "mean of four models",
                    f"mean absolute difference of success {mean:.3f}, largest "
                    f"{max(gaps[adversary]):.3f}, over {len(gaps[adversary])} cells",
                ]
            )
    if not rows:
        return ""
    return "\n".join(["## In short\n", table(["what", "published", "measured"], rows)])


def _models(mechanism: str, epsilon: str, adversary: str) -> Mapping[str, Sequence[float]]:
    known = "grr" if mechanism == "none" else mechanism
    found: Mapping[str, Sequence[float]] = PUBLISHED["text"][known][epsilon][adversary]
    return found


def _gaps(r: Results) -> dict[str, list[float]]:
    """Measured success less the mean of the published models, for every cell."""
    out: dict[str, list[float]] = {"fc": [], "attention": []}
    for variant in r.variants("text", "newsgroups"):
        adversary, mechanism, epsilon = variant.split()
        known = [v[0] for v in _models(mechanism, epsilon, adversary).values()]
        own = (r.of("text", "newsgroups", variant) or {})["success"][0]
        out[adversary].append(abs(own - sum(known) / len(known)))
    return out


# -- sections -------------------------------------------------------------------------------------


def fc_section(r: Results) -> str:
    out = ["## Figures 7, 8 and 15: the fully connected adversary\n", prose.FC, ""]
    for name in r.sets("fc"):
        rows = []
        for mechanism in MECHANISMS:
            decoded = r.of("decoder", name, mechanism) or {}
            for epsilon, v in r.over("fc", name, mechanism):
                rows.append(
                    [
                        named(mechanism),
                        f"{epsilon:g}",
                        f"{v['claimed']:,.6g} / {v['exact']:,.0f}",
                        cell(v["tuned"]),
                        cell((decoded.get(f"{epsilon:g}") or {}).get("success")),
                        cell(v["published"]),
                        cell(v["theory"]),
                        cell(v["AUC"]),
                        cell(v["P_M"]),
                        number(v["theorem 1"][1]),
                        number(v["theorem 2 claimed"]),
                        number(v["total variation"]),
                        cell(v["accuracy"]),
                        cell((r.of("utility", name, mechanism) or {}).get(f"{epsilon:g}")),
                    ]
                )
        one = r.of("fc", name, r.variants("fc", name)[0]) or {}
        out += [
            f"### `{name}`\n",
            f"Universe of {one['universe']:,} records; accuracy without protection "
            f"{cell(one['accuracy without'])}.\n",
            f"![Success over epsilon](active_membership-{name}.svg)\n",
        ]
        drawn = [m for m in MECHANISMS if name != COMPANION and len(r.over("fc", name, m)) > 1]
        out += [f"![{named(m)}](active_membership-{name}-{m}.svg)" for m in drawn]
        out += [
            "",
            table(
                [
                    "mechanism",
                    "eps",
                    "claimed / exact",
                    "success, tuned",
                    "tuned, published decoder",
                    "midpoint",
                    "tau = Delta",
                    "AUC",
                    "P_M",
                    "Theorem 1",
                    "Theorem 2, claimed",
                    "total variation",
                    "accuracy",
                    "accuracy on protected",
                ],
                rows,
            ),
        ]
    return "\n".join(out)


def _decoders(r: Results, name: str, mechanism: str, epsilon: str) -> str:
    """P_M by both decoders, where both were measured."""
    own = dict(r.over("fc", name, mechanism)).get(float(epsilon))
    other = (r.of("decoder", name, mechanism) or {}).get(epsilon)
    if own is None or other is None:
        return ""
    return (
        f"By decoder P_M is {cell(own['P_M'])} (bits turned back that flip more often than not) "
        f"and {cell(other['P_M'])} (bits as they came): that is not what sets it.\n"
    )


def spread_section(r: Results) -> str:
    out = []
    for name in r.sets("spread"):
        for variant in r.variants("spread", name):
            v = r.of("spread", name, variant) or {}
            mechanism, epsilon = variant.split()
            rows = [
                [factor, f"{found['radius']:.4g}", cell(found["P_M"]), cell(found["success"])]
                for factor, found in v.items()
            ]
            out += [
                f"### The spread of features, {named(mechanism)} at eps = {epsilon}, `{name}`\n",
                prose.SPREAD,
                _decoders(r, name, mechanism, epsilon),
                "Features times a factor, all else equal:\n",
                table(["spread", "Delta", "P_M", "success at tau = Delta"], rows),
            ]
    return "\n".join(out)


def budget_section(r: Results) -> str:
    out = []
    for name in r.sets("budget"):
        for variant in r.variants("budget", name):
            v = r.of("budget", name, variant) or {}
            rows = [
                [
                    kind,
                    f"{found['claimed']:,.4g}",
                    "infinite" if found["exact"] is None else f"{found['exact']:,.1f}",
                    f"{found['delta']:g}",
                    f"{1e3 * found['seconds']:.1f}",
                ]
                for kind, found in v.items()
            ]
            out += [
                f"## Budgets of a record, {name}, eps = {variant}\n",
                prose.BUDGET,
                "",
                table(["mechanism", "claimed", "exact", "delta", "milliseconds"], rows),
            ]
    return "\n".join(out)


def attention_section(r: Results) -> str:
    out = ["## Figure 9: the attention adversary\n", prose.ATTENTION, ""]
    for name in r.sets("attention"):
        rows = []
        for variant in r.variants("attention", name):
            count, batch, mechanism, epsilon = variant.split()
            v = r.of("attention", name, variant) or {}
            rows.append(
                [
                    count,
                    batch,
                    named(mechanism),
                    epsilon,
                    f"{v['beta']:.4g}",
                    cell(v["success"]),
                    cell(v["AUC"]),
                    cell(v["TPR at 1 % FPR"]),
                    cell(v["TNR at 1 % FNR"]),
                ]
            )
        head = ["N", "batch", "mechanism", "eps", "beta found", "success", "AUC"]
        has = {v.split()[2] for v in r.variants("attention", name)}
        drawn = ["mechanisms", *(["batches"] if "bitrand" in has else [])]
        out += [f"`{name}` patches:\n"]
        out += [f"![Success, {d}](active_membership-attention-{name}-{d}.svg)" for d in drawn]
        out += ["", table([*head, "TPR at 1 % FPR", "TNR at 1 % FNR"], rows)]
        out.append(choices_section(r, name))
    return "\n".join(out)


def choices_section(r: Results, name: str) -> str:
    """The same points with what the paper chose and the table above did not."""
    kinds = {
        "attention": "as above",
        "random": "heads 2 and 4 leave out a random direction",
        "wide": f"{PUBLISHED_DIMENSION} dimensions",
    }
    points = sorted({v for k in ("random", "wide") for v in r.variants(k, name)})
    rows = []
    for variant in points:
        for kind, words in kinds.items():
            v = r.of(kind, name, variant)
            if v is not None:
                count, batch, mechanism, epsilon = variant.split()
                where = f"N = {count}, batch {batch}, {named(mechanism)}, eps {epsilon}"
                rows.append([where, words, f"{v['beta']:.4g}", cell(v["success"]), cell(v["AUC"])])
    if not rows:
        return ""
    head = ["point", "choice", "beta found", "success", "AUC"]
    return "\n".join(["With the paper's own choices:\n", table(head, rows)])


def beta_section(r: Results) -> str:
    out = ["## Figure 10 and table 3: beta\n", prose.BETA, ""]
    for name in r.sets("beta"):
        found = {v: r.of("beta", name, v) or {} for v in r.variants("beta", name)}
        betas = [b for b in next(iter(found.values())) if b != "theory"]
        rows = [[b, *(cell(v[b]["success"]) for v in found.values())] for b in betas]
        rows.append(["AUC at the best", *(cell(_best(v)) for v in found.values())])
        needed = []
        for v in found.values():
            enough, apart = v["theory"]["beta"], v["theory"]["separation"]
            needed.append(
                f"none: separation {apart:.3g}" if enough is None else f"at least {enough:.3g}"
            )
        rows.append(["Theorem 3 asks for", *needed])
        epsilons = [f"eps {v.split()[-1]}" for v in found]
        first = next(iter(found)).split()
        out += [
            f"`{name}`, N = {first[0]}, batch {first[1]}, {named(first[2])}; success by beta:\n",
        ]
        if len(betas) > 1:
            out.append(f"![Success over beta](active_membership-beta-{name}.svg)\n")
        out.append(table(["beta", *epsilons], rows))
    return "\n".join(out)


def _best(v: Mapping[str, Any]) -> Sequence[float] | None:
    rows = [found for b, found in v.items() if b != "theory"]
    best: Sequence[float] | None = max(rows, key=lambda f: f["success"][0])["AUC"]
    return best


def text_section(r: Results) -> str:
    if not r.sets("text"):
        return ""
    scale = r.scale
    about = prose.TEXT.format(
        words=scale["text_words"], places=scale["text_places"], records=scale["text_records"]
    )
    out = ["## Tables 4 to 6: text\n", about, ""]
    for name in r.sets("text"):
        rows = []
        for mechanism in ("none", "grr", "rappor", "dbitflip"):
            for epsilon in ("inf", *(f"{e:g}" for e in scale["text"])):
                for adversary in ("fc", "attention"):
                    v = r.of("text", name, f"{adversary} {mechanism} {epsilon}")
                    if v is None:
                        continue
                    known = _models(mechanism, epsilon, adversary)
                    published = [
                        f"{min(v[i] for v in known.values()):.2f} to "
                        f"{max(v[i] for v in known.values()):.2f}"
                        for i in (0, 2)
                    ]
                    rows.append(
                        [
                            named(mechanism),
                            epsilon,
                            adversary,
                            f"{known['BERT'][0]:.2f}",
                            published[0],
                            cell(v["success"]),
                            cell(v["F1"]),
                            published[1],
                            cell(v["AUC"]),
                            _one_token(mechanism, epsilon, adversary, scale),
                        ]
                    )
        out += [
            table(
                [
                    "mechanism",
                    "eps of a token",
                    "adversary",
                    "published, BERT",
                    "published, four models",
                    "success",
                    "F1",
                    "published AUC",
                    "AUC",
                    "one token, exact",
                ],
                rows,
            )
        ]
        out += [alphabet_section(r, name), roc_section(r, name)]
    return "\n".join(out)


def alphabet_section(r: Results, name: str) -> str:
    """What the choice of the alphabet does."""
    sizes = sorted({r.scale["text_words"], *r.scale["other_words"]})
    rows = []
    for size in sizes:
        for adversary in ("fc", "attention"):
            v = (
                r.of("text", name, f"{adversary} grr 6")
                if size == r.scale["text_words"]
                else r.of("alphabet", name, f"{size} {adversary} grr 6")
            )
            if v is not None:
                one = theory.grr_advantage(6.0, r.scale["text_records"], size)
                closed = f"{theory.success(one):.3f}" if adversary == "attention" else "–"
                row = [f"{size:,}", adversary, str(v["universe"])]
                rows.append([*row, cell(v["success"]), cell(v["AUC"]), closed])
    if len(rows) < 3:
        return ""
    head = ["words", "adversary", "records that can be targets", "success", "AUC"]
    return "\n".join(["GRR at eps = 6 by alphabet:\n", table([*head, "one token, exact"], rows)])


def _one_token(mechanism: str, epsilon: str, adversary: str, scale: Mapping[str, Any]) -> str:
    """Success of whoever looks at the target token alone, in closed form."""
    if mechanism != "grr" or adversary != "attention":
        return "–"
    gain = theory.grr_advantage(float(epsilon), scale["text_records"], scale["text_words"])
    return f"{theory.success(gain):.3f}"


def roc_section(r: Results, name: str) -> str:
    rows, drawn = [], []
    for epsilon in ("6", "8"):
        for mechanism in ("grr", "rappor", "dbitflip"):
            v = r.of("text", name, f"attention {mechanism} {epsilon}")
            if v is None:
                continue
            known = PUBLISHED["figure 16"].get(mechanism, {}).get(epsilon)
            corners = [cell(v["TPR at 1 % FPR"]), cell(v["TNR at 1 % FNR"])]
            rows.append([epsilon, named(mechanism), number(known), cell(v["AUC"]), *corners])
            drawn.append(epsilon)
    if not rows:
        return ""
    head = ["eps", "mechanism", "published AUC", "AUC", "TPR at 1 % FPR", "TNR at 1 % FNR"]
    pictures = [f"![ROC at eps = {e}](active_membership-roc-{e}.svg)" for e in dict.fromkeys(drawn)]
    parts = ["## Figure 16: ROC and its corners\n", prose.ROC, "", *pictures, ""]
    return "\n".join([*parts, table(head, rows)])


def floor_section(r: Results) -> str:
    out = ["## Figures 5 and 6: the floor of Theorem 3\n", prose.FLOOR, ""]
    for kind in r.sets("floor"):
        sizes = [f"{v:g}" for v in r.scale["finer" if kind == "one-hot" else "noise"]]
        rows = []
        for variant in r.variants("floor", kind):
            n, d = variant.split()
            found = r.of("floor", kind, variant) or {}
            for which in ("spare", "random"):
                cells = []
                for s in sizes:
                    value = found.get(s, {}).get(which)
                    if not isinstance(value, list):
                        cells.append("no floor")
                    else:
                        cells.append(f"{value[0]:.3f} ({value[1]:.3f})")
                rows.append([n, f"{int(d):,}", which, *cells])
        head = ["N", "d", "left out", *(f"L1 noise {s}" for s in sizes)]
        out += [
            f"{kind.capitalize()} patterns:\n",
            f"![Floor over the noise](active_membership-floor-{kind}.svg)\n",
            table(head, rows),
        ]
    return "\n".join(out)


def grr_section() -> str:
    curves = experiments.grr_curves()
    keys = ("theorem 4", "exact", "total variation", "theorem 2")
    rows = [
        [epsilon, *(f"{v[k]:.4f}" for k in keys)]
        for epsilon, v in curves.items()
        if float(epsilon) % 1 == 0
    ]
    head = ["eps", "Theorem 4", "exact, this adversary", "total variation", "Theorem 2"]
    return "\n".join(
        [
            "## Figure 13: GRR, in closed form\n",
            prose.GRR,
            "",
            "![Advantage under GRR](active_membership-grr.svg)\n",
            table(head, rows),
        ]
    )


def speed_section(r: Results) -> str:
    found = r.raw.get("speed")
    if not found:
        return ""
    rows = []
    for data, by_epsilon in found["games"].items():
        for epsilon, v in by_epsilon.items():
            t, ratio = v["milliseconds"], v["ratio"]
            rows.append(
                [
                    data,
                    epsilon,
                    f"{t['module']:.2f}",
                    f"{t['drawn']:.3f} ({ratio['drawn']:.0f}x)",
                    f"{t['lazy']:.4f} ({ratio['lazy']:.0f}x)",
                    f"{v['agreed']:,} of {v['compared']:,}",
                ]
            )
    head = ["records", "eps", "module", "every feature drawn", "lazily", "decided alike"]
    load = f"Load average {found['load'][0]:.1f} before, {found['load'][1]:.1f} after"
    return "\n".join(["## How fast a game is\n", prose.SPEED, "", table(head, rows), f"{load}.\n"])


# -- page -----------------------------------------------------------------------------------------


def render(results: Measured, missing: Sequence[str], lacking: Sequence[str] = ()) -> str:
    """The whole page as markdown."""
    r = Results(results)
    sections = [
        prose.intro(r.scale),
        summary_section(r),
        prose.differs(r.scale),
        fc_section(r),
        spread_section(r),
        budget_section(r),
        attention_section(r),
        beta_section(r),
        text_section(r),
        floor_section(r),
        grr_section(),
        speed_section(r),
        prose.not_measured(missing, lacking),
    ]
    return "\n".join(s for s in sections if s).rstrip() + "\n"


def write(
    results: Measured, folder: Path, missing: Sequence[str], lacking: Sequence[str] = ()
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "active_membership.md"
    write_atomically(page, render(results, missing, lacking))
    for name, svg in figures(Results(results)).items():
        write_atomically(folder / name, svg)
    return page
