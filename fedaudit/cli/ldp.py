"""`fedaudit ldp`: does a local mechanism keep what it claims?"""

from __future__ import annotations

import shutil
import textwrap
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedaudit.cli.app import new_app
from fedaudit.cli.option_file import OptionFile
from fedaudit.cli.output import interruptible
from fedaudit.codec import to_json
from fedaudit.errors import UsageError
from fedaudit.files import parse_json
from fedaudit.protections.local_dp import make
from fedaudit.protections.local_dp.check import check_callable, check_mechanism, load_callable
from fedaudit.randomness import Seed

if TYPE_CHECKING:
    from fedaudit.protections.local_dp.check import ClaimCheck

app = new_app()
ldp_app = typer.Typer(help="Local differential privacy: claims and facts.", no_args_is_help=True)
app.add_typer(ldp_app, name="ldp")


REFUTED = 4
"""Exit code of a refuted claim."""


@ldp_app.callback()
def ldp() -> None:
    """Local differential privacy: claims and facts."""


@ldp_app.command("check")
def ldp_check(
    mechanism: Annotated[
        str | None,
        typer.Argument(help="grr, rappor, dbitflip, bitrand, ome, laplace, gaussian."),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="Of one feature; for bitrand and ome of a record; with --callable the claim."
        ),
    ] = None,
    features: Annotated[int | None, typer.Option(help="Features per record (default 1).")] = None,
    alphabet: Annotated[int | None, typer.Option(help="Values of a feature.")] = None,
    bits: Annotated[int | None, typer.Option(help="Bits of a feature (bitrand, ome).")] = None,
    hashes: Annotated[int | None, typer.Option(help="Of a Bloom filter (rappor).")] = None,
    filter_bits: Annotated[
        int | None, typer.Option(help="Of a Bloom filter (rappor); none: one-hot.")
    ] = None,
    permanent_noise: Annotated[
        float | None, typer.Option(help="RAPPOR's f, instead of epsilon.")
    ] = None,
    one_from_zero: Annotated[float | None, typer.Option(help="RAPPOR's p.")] = None,
    one_from_one: Annotated[float | None, typer.Option(help="RAPPOR's q.")] = None,
    buckets: Annotated[int | None, typer.Option(help="d of dbitflip (default: all).")] = None,
    alpha: Annotated[float | None, typer.Option(help="Of ome (default 100).")] = None,
    delta: Annotated[float | None, typer.Option(help="Of a record (gaussian, --callable).")] = None,
    claim: Annotated[
        float | None, typer.Option(help="Test this claim per record instead of the mechanism's.")
    ] = None,
    samples: Annotated[int, typer.Option(help="Draws of each input.")] = 20_000,
    confidence: Annotated[float, typer.Option(help="Of the lower bound.")] = 0.95,
    callable_: Annotated[
        str | None,
        typer.Option("--callable", help="module:function, a mechanism f(x, rng) of your own."),
    ] = None,
    input_: Annotated[
        list[str] | None,
        typer.Option("--input", help="Of your mechanism, as JSON, repeatable (default 0 and 1)."),
    ] = None,
    vectorised: Annotated[
        bool, typer.Option("--vectorised", help="Your mechanism takes an array of inputs.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 1,
    options: OptionFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Claimed, exact and measured epsilon of a local mechanism, and a verdict.

    Exit code 4: refuted. 0: consistent, or underpowered.
    """
    own = {
        "features": features,
        "alphabet": alphabet,
        "bits": bits,
        "hashes": hashes,
        "filter_bits": filter_bits,
        "permanent_noise": permanent_noise,
        "one_from_zero": one_from_zero,
        "one_from_one": one_from_one,
        "buckets": buckets,
        "alpha": alpha,
    }
    given = {k: v for k, v in own.items() if v is not None}
    if (mechanism is None) == (callable_ is None):
        raise UsageError(
            "nothing to check, or two mechanisms at once",
            expected="a mechanism by name, or your own with --callable",
            got="both" if mechanism else "neither",
            remedy="fedaudit ldp check grr --epsilon 1 --alphabet 4",
        )
    rng = Seed(seed).generator("ldp check")
    with interruptible("start it again; fewer --samples are quicker"):
        if callable_ is not None:
            done = check_callable(
                load_callable(callable_),
                _inputs(input_),
                claimed=_claim(epsilon, claim, given),
                rng=rng,
                name=callable_,
                delta=delta or 0.0,
                samples=samples,
                confidence=confidence,
                vectorised=vectorised,
            )
        else:
            if input_ or vectorised:
                raise UsageError(
                    "inputs of a built-in mechanism are chosen for you",
                    expected="--input and --vectorised with --callable only",
                    got=f"{mechanism}",
                    remedy="remove them: the check takes the two worst records",
                )
            some = {"epsilon": epsilon, "delta": delta}
            given |= {k: v for k, v in some.items() if v is not None}
            done = check_mechanism(
                make(str(mechanism), given),
                rng=rng,
                claimed=claim,
                samples=samples,
                confidence=confidence,
            )
    if as_json:
        typer.echo(to_json(done.to_dict()))
    else:
        _show(done)
    if done.verdict == "refuted":
        raise typer.Exit(REFUTED)


def _inputs(texts: list[str] | None) -> list[Any]:
    out = []
    for text in texts or ["0", "1"]:
        try:
            out.append(parse_json(text))
        except ValueError:
            raise UsageError(
                "an input cannot be read",
                expected='JSON: 0, 1.5, [0, 1] or "text"',
                got=repr(text),
                remedy="--input '[0.0, 1.0]'",
            ) from None
    return out


def _claim(epsilon: float | None, claim: float | None, given: dict[str, Any]) -> float:
    """The claimed epsilon of a mechanism of the user's own, which has no other settings here."""
    if given:
        raise UsageError(
            "a mechanism of your own takes no settings here",
            expected="--epsilon, the claim",
            got=", ".join("--" + k.replace("_", "-") for k in given),
            remedy="set them in your function",
        )
    claims = [c for c in (epsilon, claim) if c is not None]
    if len(claims) != 1:
        raise UsageError(
            "one claimed epsilon is needed",
            expected="--epsilon: what your mechanism claims per record",
            got="none" if not claims else f"{claims[0]:g} and {claims[1]:g}",
            remedy="--epsilon 1.0",
        )
    return claims[0]


def _show(done: ClaimCheck) -> None:
    settings = ", ".join(f"{k} {_word(v)}" for k, v in done.settings.items())
    at = f" at delta {done.delta:g}" if done.delta else ""
    m = done.measured
    lasting = () if done.permanent is None else (f"{done.permanent:,.6g}",)
    lines = (
        ("claimed", f"{done.claimed:,.6g} per record{at}"),
        ("exact", "unknown" if done.exact is None else f"{done.exact:,.6g} in the worst case"),
        *(
            ("permanent", f"{p} at most, for any number of reports on one permanent response")
            for p in lasting
        ),
        (
            "measured",
            f"at least {m.low:.4g} at {100 * m.confidence:g} %, by {m.n:,} of {done.samples:,} "
            f"draws, which cannot show more than {done.ceiling:.4g} ({m.method})",
        ),
        ("verdict", f"{done.verdict}: {done.reason}"),
    )
    width = max(40, shutil.get_terminal_size((100, 24)).columns)
    typer.echo(f"{done.mechanism}: {settings}")
    for label, text in lines:
        start = f"  {label:<9} "
        # a number stays on the line of its unit
        tied = text.replace(" %", "\0%")
        rows = textwrap.wrap(tied, width, initial_indent=start, subsequent_indent=" " * len(start))
        typer.echo("\n".join(rows).replace("\0", " "))


def _word(value: Any) -> str:
    return " and ".join(map(str, value)) if isinstance(value, list) else str(value)
