"""`fedaudit init`: a commented config for a user's own file, and the reasons for each choice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedaudit.errors import UsageError
from fedaudit.experiment.config import DEFAULT, _toml_value


def write_config(
    source: Path | None,
    out: Path,
    *,
    label: str | None = None,
    client: str | None = None,
    organisation: str | None = None,
    person: str | None = None,
    force: bool = False,
) -> list[str]:
    """Write a config to `out`; returns what was chosen, a line each."""
    if out.exists() and not force:
        raise UsageError(
            f"{out} exists already",
            expected="a new file",
            got=str(out),
            remedy="choose another with --out, or pass --force",
        )
    if source is None:
        text, chosen = DEFAULT, ["the built-in experiment on handwritten digits"]
    else:
        text, chosen = config_for(
            source, label=label, client=client, organisation=organisation, person=person
        )
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot write {out}",
            expected="a folder that can be written",
            got=error.strerror or str(error),
            remedy="choose another with --out",
        ) from None
    return [*chosen, f"wrote {out}; next: fedaudit run {out}"]


def config_for(
    source: Path,
    *,
    label: str | None,
    client: str | None,
    organisation: str | None,
    person: str | None,
) -> tuple[str, list[str]]:
    """The text of a config for the data at `source`, and the choices made."""
    from fedaudit.data import files

    guess = files.sniff(source)
    reasons = dict(guess.reasons or {})
    said = {"label": label, "client": client, "organisation": organisation, "person": person}
    guess = replace(
        guess,
        label=label or guess.label,
        client=client or guess.client,
        organisation=organisation or guess.organisation,
        person=person or guess.person,
    )
    reasons |= {name: "as you said" for name, value in said.items() if value is not None}
    # a column cannot play two parts
    taken = {guess.label, guess.client, guess.organisation, guess.person} - {None}
    guess = replace(guess, ignore=tuple(c for c in guess.ignore if c not in taken))
    lines = ["seed = 1", "", "[data]", f"path = {_toml_value(str(source))}"]
    chosen = [f"format: {guess.format}" + _because(reasons.get("format"))]
    read: dict[str, object] = {}
    for name in ("label", "client", "organisation", "person"):
        value = getattr(guess, name)
        if value is not None:
            read[name] = value
            lines.append(f"{name} = {_toml_value(value)}{_comment(reasons.get(name))}")
            chosen.append(f"{name}: {value}" + _because(reasons.get(name)))
    if guess.ignore:
        read["ignore"] = guess.ignore
        lines.append(f"ignore = {_toml_value(guess.ignore)}{_comment(reasons.get('ignore'))}")
        chosen.append(f"ignore: {', '.join(guess.ignore)}" + _because(reasons.get("ignore")))
    if guess.format == "table":
        read["missing"], read["decimal"] = guess.missing, guess.decimal
        lines.append(f"missing = {_toml_value(guess.missing)}   # refuse, drop, mean or category")
        if guess.decimal != ".":
            lines.append(f"decimal = {_toml_value(guess.decimal)}")
    # the file is read once now, so that a mistake shows here and not in a long run
    dataset = files.read(source, **read)  # type: ignore[arg-type]
    about = files.describe(dataset)
    chosen.append(
        f"read: {about['records']} records"
        + (f", {len(dataset.classes)} classes" if dataset.classes else "")
    )
    lines += ["test_fraction = 0.2   # held out of every client's training", ""]
    if dataset.client is not None:
        owners = len(set(dataset.client))
        lines += ["[partition]", 'kind = "by_owner"', ""]
        lines += [
            "[federation]",
            f"clients = {owners}   # one per {guess.client}",
            "rounds = 10",
            "",
        ]
        chosen.append(f"clients: {owners}, one per {guess.client}")
    else:
        count = max(2, min(10, len(dataset) // 20))
        lines += ["[partition]", 'kind = "dirichlet"', "alpha = 0.5   # smaller: more unequal", ""]
        lines += ["[federation]", f"clients = {count}", "rounds = 10", ""]
        chosen.append(f"clients: {count}, split by a Dirichlet draw (no client column)")
    kind = "gpt" if dataset.kind == "text" else "cnn" if dataset.kind == "image" else "mlp"
    if kind == "cnn" and min(dataset.x.shape[-2:]) < 4:  # type: ignore[union-attr]
        kind = "mlp"
    lines += ["[task]", f'kind = "{kind}"', ""]
    chosen.append(f"task: {kind}")
    rate = 0.05 if kind in ("mlp", "cnn") else 0.1
    lines += ["[training]", f"learning_rate = {rate}", "epochs = 1", "batch_size = 16", ""]
    lines += ["[protections.shuffle]   # uploads reach the server without names", ""]
    lines += ["[audits.coverage]", "", "[audits.fingerprint]", ""]
    return "\n".join(lines), chosen


def _comment(reason: str | None) -> str:
    return f"   # {reason}" if reason else ""


def _because(reason: str | None) -> str:
    return f" ({reason})" if reason else ""
