"""The first page: what it says follows from verdicts, numbers and declared facts."""

from dataclasses import replace

import pytest

from fedaudit.audits import AUDITS, facts_of
from fedaudit.protections.declared import in_force
from fedaudit.reporting.brief import LINES, WIDTH, brief
from fedaudit.reporting.cards import cards
from fedaudit.reporting.chapter import Chapter
from fedaudit.reporting.findings import judge_all
from fedaudit.reporting.first_page import best_alternative, key_of, shown_place, summarise
from fedaudit.reporting.overview import by_federation
from fedaudit.reporting.rules import VERDICTS
from fedaudit.results import AuditResult, Bound, Estimate, FamilyTest, Need

LEAK, QUIET = (0.9, 0.8, 1.0), (0.5, 0.4, 0.6)


def result(audit, numbers=LEAK, **more):
    value, low, high = numbers
    e = Estimate(value=value, low=low, high=high, n=40, baseline=0.5)
    plain = {"question": f"{audit}?", "vantage": "server", "headline": "s", "estimates": {"s": e}}
    return AuditResult(audit=audit, **{**plain, "detectable": 0.65, **more})


def silent(audit):
    need = Need(code="no_single_updates", what="no updates")
    return AuditResult(
        audit=audit, question=f"{audit}?", vantage="server", status="not_applicable", need=need
    )


def chapter(variant, rows, accuracy=0.9, **more):
    e = Estimate(value=accuracy, low=accuracy - 0.05, high=accuracy + 0.05, n=200, baseline=0.1)
    plain = {
        "federation": "clinics",
        "summary": {},
        "utility": {"accuracy": e},
        "config": "seed = 1",
        "folder": variant,
        "arrived": 20,
        "expected": 20,
    }
    known = in_force({"name": name} for name in more["trust"]) if "trust" in more else None
    found = [replace(f, variant=variant) for f in judge_all(rows, known)]
    return Chapter(variant=variant, findings=found, results=rows, **{**plain, **more})


def summed(*chapters):
    (part,) = by_federation(chapters)
    return summarise(part, "run")


MEMBERS, LINKS = "two_stage_membership", "fingerprint"


def test_today_says_who_can_do_what_now():
    s = summed(chapter("bare", [result(MEMBERS), result(LINKS, QUIET)]))
    assert s.today == f"Today the server can {facts_of(MEMBERS).words.learns}."
    seen = result(LINKS, vantage="wiretap")
    both = summed(chapter("bare", [result(MEMBERS), seen])).today
    assert facts_of(LINKS).words.learns in both
    assert "; whoever reads all messages can " in both


def test_of_as_many_leaks_the_weaker_is_nearer_whatever_it_costs():
    strong = chapter("sums", [result(MEMBERS)])
    weak = chapter("sums, noise", [result(MEMBERS, (0.6, 0.52, 0.68))], accuracy=0.8)
    (part,) = by_federation([chapter("bare", [result(MEMBERS)]), strong, weak])
    assert part.variants[best_alternative(part).index] == "sums, noise"
    said = summarise(part, "run").alternative
    assert "(0.6); accuracy 90.0 % becomes 80.0 % (75 to 85 %)" in said


def test_what_a_stronger_server_reaches_is_not_called_solved():
    """No leak in the run's own model, but outright if clients accept any architecture."""
    crafted = "active_membership"
    quiet = result(crafted, QUIET)
    more = Estimate(value=1.0, low=0.99, high=1.0, n=40, baseline=0.5)
    granted = replace(quiet, estimates={**quiet.estimates, "success_any_architecture": more})
    (part,) = by_federation([chapter("bare", [result(crafted)]), chapter("sums", [granted])])
    s = summarise(part, "run")
    (row,) = s.rows
    assert row.cells[1].beside.endswith("but 100 % if clients accept any architecture")
    assert f"unsure: “{row.question}”" in s.alternative
    (bare,) = by_federation([chapter("bare", [result(crafted)]), chapter("sums", [quiet])])
    assert "unsure" not in summarise(bare, "run").alternative


def planted(adjusted):
    """Few records rebuilt by watching, many by planting weights; clients told by the former."""
    rebuilt = "reconstruction"
    low, high = Estimate(value=0.1, low=0.05, high=0.2, n=40, baseline=0.0), (0.4, 0.3, 0.5)
    more = Estimate(value=high[0], low=high[1], high=high[2], n=40, baseline=0.0)
    return replace(
        result(rebuilt),
        headline="records_rebuilt",
        estimates={"records_rebuilt": low, "records_rebuilt_dishonest": more},
        test=FamilyTest(adjusted=adjusted, decided="records_rebuilt_dishonest", level=0.025),
        per_client={
            name: {"share": share, "low": share / 2, "high": 2 * share, "chance": 0.0}
            for name, share in (("a", 0.05), ("b", 0.1), ("c", 0.3))
        },
    )


def test_a_reading_that_assumes_more_says_what_it_assumes():
    """Rebuilding by planted weights is no feat of a server that only watches."""
    s = summed(chapter("bare", [planted({"records_rebuilt_dishonest": 0.001})]))
    assert s.today.startswith("Today the server can rebuild 40 % of records if it plants weights")
    assert "if it plants weights" in s.rows[0].cells[0].beside
    (worst,) = [w for w in s.worst if w.audit == "reconstruction"]
    assert worst.sentence == "the server can rebuild 40 % of records if it plants weights."
    (exposed,) = [c.texts[0] for c in s.costs if c.label == "most exposed client"]
    assert exposed.startswith("c: 30 % (15 to 60 %), all 10.0 %")


def test_a_reading_that_the_test_weighed_is_not_held_against_its_verdict():
    quiet = replace(planted({"records_rebuilt_dishonest": 0.4}), per_client={}, detectable=0.15)
    s = summed(chapter("bare", [quiet]))
    assert s.rows[0].cells[0].verdict == "no_evidence"
    assert "plants weights" not in s.rows[0].cells[0].beside


def test_a_card_draws_the_number_of_the_first_page():
    """Where another reading than the headline decided, both show that one, and the card both."""
    test = FamilyTest(method="max-T", adjusted={"s": 0.4, "t": 0.001}, decided="t", level=0.025)
    weak = Estimate(value=0.52, low=0.44, high=0.6, n=40, baseline=0.5)
    strong = Estimate(value=0.8, low=0.7, high=0.9, n=40, baseline=0.5)
    decided = replace(result(MEMBERS), estimates={"s": weak, "t": strong}, test=test)
    (part,) = by_federation([chapter("bare", [decided])])
    (card,) = cards([part])
    (drawn,) = card.parts[0].rows
    (row,) = summarise(part, "run").rows
    assert drawn.estimate == strong
    assert row.cells[0].number in card.parts[0].picture
    assert any("shown is t, which decided; s is 0.52" in line for line in card.parts[0].lines)


def test_without_a_leak_it_is_not_called_safe():
    s = summed(chapter("bare", [result(MEMBERS, QUIET), result(LINKS, QUIET, detectable=None)]))
    assert s.today == "Today none of 2 questions shows a leak; 1 could not be answered."
    every = " ".join([s.today, s.alternative, *(f.sentence for f in s.worst)]).lower()
    assert "safe" not in every
    assert "secure" not in every


def test_a_disagreement_with_theory_comes_first():
    bound = Bound(value=0.6, kind="upper", of="s", source="[A]")
    s = summed(chapter("bare", [result(LINKS), result(MEMBERS, bounds={"b": bound})]))
    assert s.today.startswith("Theory and measurement disagree: s was measured at 0.9")
    assert s.step.command == "fedaudit verify run/bare"


def test_the_best_alternative_leaves_least_then_costs_least():
    base = chapter("bare", [result(MEMBERS), result(LINKS)])
    dear = chapter("dear", [result(MEMBERS, QUIET), silent(LINKS)], accuracy=0.7)
    cheap = replace(dear, variant="cheap", utility=base.utility)
    half = chapter("half", [result(MEMBERS), silent(LINKS)])
    (part,) = by_federation([base, half, dear, cheap])
    best = best_alternative(part)
    assert part.variants[best.index] == "cheap"
    text = summarise(part).alternative
    assert text == (
        "Now use “cheap”; no leak showed; accuracy stays 90.0 % (85 to 95 %); "
        "trust: all who see messages."
    )
    (without,) = by_federation([base, half])
    short = facts_of(MEMBERS).words.short
    assert summarise(without).alternative.startswith(
        f"Now use “half” (not enough); leaks left: “{short}” (0.9); accuracy"
    )
    (without,) = by_federation([base, half, dear])
    assert "accuracy 90.0 % becomes 70.0 %" in summarise(without).alternative


def test_a_question_that_was_not_asked_is_not_a_leak_that_went_away():
    base = chapter("bare", [result(MEMBERS), result(LINKS)])
    silenced = chapter("silenced", [result(MEMBERS, QUIET)])
    measured = chapter("measured", [result(MEMBERS, QUIET), silent(LINKS)])
    (part,) = by_federation([base, silenced, measured])
    assert part.variants[best_alternative(part).index] == "measured"
    (part,) = by_federation([base, silenced])
    said = summarise(part)
    assert f"not asked: “{facts_of(LINKS).words.short}”" in said.alternative
    assert [c.words for row in said.rows for c in row.cells].count("not asked") == 1


def test_the_epsilon_is_that_of_the_neediest_client():
    given = {
        "dp_sgd": {"a": {"epsilon": 2.0, "unit": "record"}, "b": {"epsilon": 8, "unit": "record"}}
    }
    noisy = chapter("noisy", [result(MEMBERS, QUIET)], guarantees=given)
    s = summed(chapter("bare", [result(MEMBERS)]), noisy)
    assert "(epsilon 8 per record)" in s.alternative
    (row,) = [row for row in s.costs if row.label == "epsilon promised"]
    assert row.texts == ("no promise", "8 per record")


def test_the_most_exposed_client_has_the_highest_own_interval():
    column = facts_of(MEMBERS).decision.client_value
    own = {
        "client 1": {column: 0.9, "low": 0.8, "high": 1.0},
        "client 2": {column: 0.95, "low": 0.6, "high": 1.0},
        "client 3": {column: 0.5, "low": 0.3, "high": 0.7},
    }
    s = summed(chapter("bare", [result(MEMBERS, per_client=own)]))
    (row,) = [row for row in s.costs if row.label == "most exposed client"]
    assert row.texts == (f"client 1: 0.9 (0.8 to 1), “{facts_of(MEMBERS).words.short}”",)
    (row,) = [row for row in s.costs if row.label == "updates received"]
    assert row.texts == ("20 of 20",)
    alike = {f"client {i}": own["client 1"] for i in range(4)}
    s = summed(chapter("bare", [result(MEMBERS, per_client=own | alike)], clients=sorted(alike)))
    texts = {row.label: row.texts for row in s.costs}
    assert texts["most exposed client"] == ("cannot be told apart",)
    assert texts["updates received"] == ("20 of 20, 5 per client",)


def test_next_is_the_step_that_the_findings_ask_for():
    leaking, quiet = chapter("bare", [result(MEMBERS)]), chapter("b", [result(MEMBERS, QUIET)])
    unsure = chapter("c", [result(MEMBERS, QUIET, detectable=None)])
    steps = {
        "harden run/bare/config.toml --limit verdict": leaking,
        "audit run/bare --as secure_sum": replace(leaking, config=""),
        "gate run/b --init policy.toml": quiet,
        f"power run/c --audit {MEMBERS}": unsure,
    }
    for command, one in steps.items():
        assert summed(one).step.command == f"fedaudit {command}"
    assert summed(replace(leaking, folder=None)).step is None
    # a recording looked at behind a protection: the same command would lead in a circle
    behind = chapter("sums", [result(MEMBERS)], trust={"secure_sum": "the aggregator"}, config="")
    assert summed(behind).step is None


def test_a_page_does_not_show_where_its_folder_lies(tmp_path):
    assert shown_place(tmp_path / "private" / "run") == "run"


def test_an_audit_that_declares_no_words_still_has_a_row():
    s = summed(chapter("bare", [result("brand_new")]))
    assert s.rows[0][1] == "Brand new"
    assert s.today == "Today the server can answer: brand_new?."


@pytest.mark.parametrize("audit", AUDITS)
def test_every_audit_declares_the_words_of_the_first_page(audit):
    words = facts_of(audit).words
    assert 0 < len(words.short) <= 30
    assert words.learns


@pytest.mark.parametrize("federations", [1, 2, 5])
@pytest.mark.parametrize("variants", [1, 4, 9])
def test_the_terminal_gets_at_most_15_lines_of_80_columns(federations, variants):
    rows = [result(name) for name in AUDITS]
    chapters = [
        chapter(f"a protection called {v}", rows, federation=f"federation {f}")
        for f in range(federations)
        for v in range(variants)
    ]
    lines = [
        "".join(p.text for p in line).rstrip()
        for line in brief(chapters, place="fedaudit-run", report="fedaudit-run/report.html")
    ]
    assert len(lines) <= LINES
    assert lines[-1] == "report: fedaudit-run/report.html"
    (command,) = [line for line in lines if line.startswith("$ ")]
    assert command.endswith("--limit verdict")
    assert all(len(line) <= WIDTH for line in lines if line != command)
    words = " ".join(lines).split()
    assert "protection" in words  # no heading breaks inside a word


def test_a_long_matrix_keeps_its_worst_questions_in_the_terminal():
    asked = [a for a in sorted(AUDITS) if a not in (MEMBERS, LINKS)]
    rows = [result(MEMBERS), result(LINKS), *(result(a, QUIET) for a in asked)]
    every = [chapter(v, rows) for v in ("bare", "shuffled, DP-SGD", "sums")]
    text = ["".join(p.text for p in line) for line in brief(every, place="run", report="r")]
    assert len(text) <= LINES
    for audit in (MEMBERS, LINKS):
        assert any(line.startswith(facts_of(audit).words.short) for line in text)
    left = sum(line.startswith(f"{facts_of(a).words.short} ") for line in text for a in asked)
    assert f"({len(asked) - left} more: see the report)" in [line.rstrip() for line in text]


@pytest.mark.parametrize("asked", [[MEMBERS], [MEMBERS, LINKS]])
def test_few_questions_are_a_matrix_in_the_terminal(asked):
    every = [chapter(v, [result(a) for a in asked]) for v in ("bare", "sums")]
    text = ["".join(p.text for p in line) for line in brief(every, place="run")]
    for audit in asked:
        assert any(line.startswith(facts_of(audit).words.short) for line in text)
    assert not any("see the report" in line for line in text)


def unsettled(audit, status):
    need = Need(code="too_few_records", what="too few records")
    return replace(silent(audit), status=status, need=need)


@pytest.mark.parametrize("status", ["failed", "nothing_to_say"])
def test_an_open_question_says_why_and_no_protection_gets_the_credit(status):
    bare = chapter("bare", [result(MEMBERS)])
    sums = chapter("sums", [unsettled(MEMBERS, status)])
    quiet = chapter("noise", [result(MEMBERS, QUIET)])
    parts = by_federation([bare, sums, quiet])
    cells = summarise(parts[0]).rows[0].cells
    assert (cells[1].verdict, cells[1].beside) == (status, "too few records")
    (card,) = cards(parts)
    assert [text.partition(":")[0] for text in card.parts[0].helped] == ["“noise”"]
    assert "Not settled with “sums”." in card.parts[0].lines


def test_the_terminal_says_first_what_is_missing():
    notices = ("Unfinished: 2 of 5 rounds are recorded so far.", "Blind: no truth.")
    one = chapter("bare", [result(MEMBERS)], notices=notices)
    first, second, *_ = ("".join(p.text for p in line) for line in brief([one], place="run"))
    assert first == notices[0]
    assert second == "(more notes in the report: 1)"


def test_no_verdict_is_green():
    assert not [label for label in VERDICTS.values() if "green" in label.style]


def test_a_remedy_that_was_measured_not_to_help_is_not_given():
    """DP-SGD and a secure sum leave the leak: only more noise is left to try."""
    rows = [result(LINKS)]
    bare, noisy, summed_up = (
        chapter("bare", rows),
        chapter("noisy", rows, trust={"dp_sgd": "the clients"}),
        chapter("sum", rows, trust={"secure_sum": "the aggregator"}),
    )

    def advice(*chapters):
        (part,) = by_federation(chapters)
        return [a.finding.remedy for of in part.questions[0].answers for a in of]

    noise, more, only_sums = (
        "add noise at the clients (DP-SGD)",
        "add more noise in DP-SGD",
        "let only a secure sum leave",
    )
    assert noise in advice(bare)[0]
    assert only_sums in advice(bare)[0]
    first, second = advice(bare, noisy)
    assert first == only_sums
    assert noise not in second
    assert advice(bare, noisy, summed_up) == ["", more, ""]
    # where the sum removed the leak, it stays a remedy for the others
    quiet = chapter("sum", [result(LINKS, QUIET)], trust={"secure_sum": "the aggregator"})
    assert advice(bare, noisy, quiet)[0] == only_sums


def test_leaks_about_records_are_named_before_leaks_about_clients():
    rows = [result("coverage"), result(LINKS, (1.0, 0.99, 1.0)), result(MEMBERS)]
    s = summed(chapter("bare", rows))
    assert [row.audit for row in s.rows] == [MEMBERS, LINKS, "coverage"]
    who = [facts_of(a).words.learns for a in (MEMBERS, LINKS, "coverage")]
    assert s.today == f"Today the server can {who[0]}, {who[1]} and {who[2]}."
    assert [f.audit for f in s.worst] == [MEMBERS, LINKS, "coverage"]


def test_every_question_says_who_looks():
    seen = [result(MEMBERS), result(LINKS, vantage="wiretap")]
    rows = {row.audit: row.observers for row in summed(chapter("bare", seen)).rows}
    assert rows == {MEMBERS: "the server", LINKS: "whoever reads all messages"}
    other = chapter("summed", [silent(MEMBERS), result(LINKS)])
    rows = {row.audit: row.observers for row in summed(chapter("bare", seen), other).rows}
    assert rows[LINKS] == "whoever reads all messages / the server"


def test_numbers_say_what_they_are():
    e = Estimate(value=0.7, low=0.6, high=0.8, n=40, baseline=0.5)
    ranked = result(MEMBERS, headline="membership_auc", estimates={"membership_auc": e})
    linked = result(LINKS, headline="linkage_accuracy", estimates={"linkage_accuracy": e})
    least = replace(e, value=0.4, low=0.4, high=float("inf"), baseline=0.0)
    bound = Bound(value=8.0, kind="upper", of="epsilon", source="[A]", assumes="the declaration")
    kept = result(
        "epsilon", headline="epsilon", estimates={"epsilon": least}, bounds={"declared": bound}
    )
    cells = {
        row.audit: (row.cells[0].text, row.cells[0].beside)
        for row in summed(chapter("bare", [ranked, linked, kept])).rows
    }
    assert cells == {
        MEMBERS: ("leak AUC 0.700", "0.600 to 0.800, chance 0.5"),
        LINKS: ("leak 70 %", "60 to 80 %, chance 50 %"),
        "epsilon": ("no evidence", "epsilon at least 0.4, at most 8 by the declaration"),
    }


@pytest.mark.parametrize(
    ("p", "low", "shown"),
    [
        (0.2, 0.6, "0.600 to 0.800, but p 0.2 over all tries"),
        (0.01, 0.4, "0.400 to 0.800, chance 0.5, but p 0.01 over all tries"),
        (0.01, 0.6, "0.600 to 0.800, chance 0.5"),
        (0.2, 0.4, "0.400 to 0.800"),
    ],
)
def test_a_verdict_that_an_interval_contradicts_says_what_decided(p, low, shown):
    e = Estimate(value=0.7, low=low, high=0.8, n=40, baseline=0.5)
    test = FamilyTest(adjusted={"membership_auc": p}, decided="membership_auc", level=0.025)
    ranked = result(MEMBERS, headline="membership_auc", estimates={"membership_auc": e}, test=test)
    (row,) = summed(chapter("bare", [ranked])).rows
    assert row.cells[0].beside == shown


def test_a_row_has_one_unit_and_names_another_reading_that_decided():
    """A share beside an area would read as if the leak had shrunk."""
    share = Estimate(value=0.55, low=0.48, high=0.62, n=40, baseline=0.5)
    area = replace(share, value=0.59, low=0.51, high=0.67)
    crafted = {"headline": "success", "estimates": {"success": share, "auc": area}}
    test = FamilyTest(adjusted={"success": 0.2, "auc": 0.01}, decided="auc", level=0.025)
    sure = replace(share, value=1.0, low=0.99, high=1.0)
    bare = result("active_membership", headline="success", estimates={"success": sure})
    noisy = result("active_membership", **crafted, test=test)
    (row,) = summed(chapter("bare", [bare]), chapter("noisy", [noisy])).rows
    assert [c.text for c in row.cells] == ["leak 100 %", "leak 55 %"]
    decided = "decided by AUC 0.590 (0.510 to 0.670, chance 0.5)"
    assert row.cells[1].beside == f"48 to 62 %, chance 50 %, {decided}"
    (alone,) = summed(chapter("noisy", [noisy])).rows
    assert alone.cells[0].text == "leak AUC 0.590"
    (card,) = cards(by_federation([chapter("bare", [bare]), chapter("noisy", [noisy])]))
    assert [drawn.estimate for drawn in card.parts[0].rows] == [sure, share]
    assert f"“noisy”: {decided}." in card.parts[0].lines


def test_no_evidence_stands_beside_what_it_is_no_more_than():
    e = Estimate(value=0.24, low=0.17, high=0.32, n=40, baseline=0.18)
    named = {"headline": "rebuilt", "estimates": {"rebuilt": e}, "detectable": 0.3}
    none = Estimate(value=0.0, low=0.0, high=0.0, n=40, confidence=1.0, baseline=0.0)
    kinds = {"headline": "kinds", "estimates": {"kinds": none}, "detectable": 1.0}
    rows = [result("reconstruction", **named), result("coverage", **kinds)]
    cells = [(row.cells[0].text, row.cells[0].beside) for row in summed(chapter("b", rows)).rows]
    assert cells == [
        ("no evidence: 24 %, unused records 18 %", "17 to 32 %"),
        ("no evidence: none found", "0 kinds of data, counted exactly"),
    ]


def test_what_was_counted_is_named_where_the_result_lists_it():
    two = Estimate(value=2.0, low=2.0, high=2.0, n=40, confidence=1.0, baseline=0.0)
    kinds = {"headline": "kinds", "estimates": {"kinds": two}, "settings": {"kinds": ["a", "b"]}}
    (row,) = summed(chapter("bare", [result("coverage", **kinds)])).rows
    assert row.cells[0].text == "leak 2"
    assert row.cells[0].beside == "kinds of data (a and b), counted exactly"


def test_the_gravest_leaks_are_named_and_the_others_counted_by_who_has_them():
    seen = [result(a, vantage="wiretap") for a in ("topology_inference", "coverage")]
    server = [result(a) for a in (LINKS, "reidentification", MEMBERS, "reconstruction")]
    s = summed(chapter("bare", [*server, *seen]))
    rebuilt, told, *_, last = [row.audit for row in s.rows]
    assert (rebuilt, told, last) == ("reconstruction", MEMBERS, "coverage")
    assert s.today.endswith("; 3 more leaks, 2 to whoever reads all messages.")


def test_the_key_holds_the_words_of_the_matrix_and_no_others():
    s = summed(chapter("bare", [result(MEMBERS), result(LINKS, QUIET)]))
    assert [k.words for k in key_of([s])] == ["leak", "no evidence"]
    other = summed(chapter("bare", [result(MEMBERS)]), chapter("sums", [silent(MEMBERS)]))
    assert [k.words for k in key_of([s, other])] == ["leak", "no evidence", "not applicable"]


def test_a_card_counts_the_columns_of_the_matrix():
    known = result(LINKS, (1.0, 1.0, 1.0), known=True)
    every = [chapter("bare", [known]), chapter("shuffled", [result(LINKS)]), chapter("sums", [])]
    (card,) = cards(by_federation(every))
    assert f"{card.words} {card.tally}" == "known outright in 1, leak in 1 of 3 columns"
