"""Build what the adversary of an audit brings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedaudit.audits.audit import Knowledge
from fedaudit.errors import NotApplicable
from fedaudit.knowledge.candidates import candidates
from fedaudit.knowledge.noise import noise_of
from fedaudit.knowledge.probing import build_games
from fedaudit.knowledge.records import Records, check_model_fits, require_unchanged_data
from fedaudit.knowledge.shadows import ShadowFederations
from fedaudit.knowledge.shadows import of_run as shadows_of
from fedaudit.randomness import Seed
from fedaudit.setup.config import Config
from fedaudit.setup.prepare import Prepared
from fedaudit.stats import query_plans
from fedaudit.trace import Trace, Truth
from fedaudit.trace.truth import MembersOnly


class KnowledgeBuilder:
    """Builds the knowledge of audits of one trace; records are loaded once, when first needed."""

    def __init__(
        self,
        trace: Trace,
        truth: Truth | None,
        seed: Seed,
        load_records: Callable[[], Records] | None,
        config: Config | Prepared | None = None,
    ) -> None:
        self._trace, self._truth, self._seed = trace, truth, seed
        self._load = load_records
        self._made = None if config is None else Prepared.of(config)
        self._config = None if self._made is None else self._made.config
        self._records: Records | None = None

    def knowledge_for(self, audit: Any) -> tuple[Knowledge, Truth | None]:
        """What this audit's adversary brings, and the truth to score against."""
        if not audit.needs:
            return Knowledge(), self._truth
        if "marks" in audit.needs:
            return self._marks(audit), self._truth
        if "games" in audit.needs:
            return self._games_for(audit)
        noise = noise_of(self._trace, self._truth, self._config)
        if "shadows" in audit.needs:
            return Knowledge(noise=noise, shadows=self._shadows_for(audit)), self._truth
        if "records" not in audit.needs:
            return Knowledge(noise=noise), self._truth
        records = self._load_once()
        pools, members, notes = candidates(records, audit.records, self._seed)
        known = Knowledge(task=records.task, candidates=pools, noise=noise, notes=notes)
        # a file of records tells who is a member even without any other truth
        truth = MembersOnly(members) if self._truth is None else self._truth.with_members(members)
        return known, truth

    def _load_once(self) -> Records:
        """The records that audits ask about."""
        if self._load is None:
            raise NotApplicable(
                "no records to ask about",
                code="no_records",
                expected="the records of a run, or a file of records",
                got="a trace alone",
                remedy="give records with --data, and the model with --model",
            )
        if self._records is None:
            self._records = self._load()
        return self._records

    def _games_for(self, audit: Any) -> tuple[Knowledge, Truth]:
        """Clients to play with, and the coins of the games."""
        records = self._load_once()
        games = build_games(audit, records, self._trace, self._config, self._seed)
        members = games.members
        truth = MembersOnly(members) if self._truth is None else self._truth.with_members(members)
        return Knowledge(extra={"games": games}), truth

    def _marks(self, audit: Any) -> Knowledge:
        """The corpus owner's keys, and what the server knows: the pairs it drew, and weights."""
        made, config = self._made, self._config
        if made is None or config is None or config.marks is None:
            raise NotApplicable(
                "no keys of marks",
                code="no_keys",
                expected="a run with [marks], whose private config holds the owner's keys",
                got="a trace alone" if config is None else "a run without marks",
                remedy="plant marks: [marks] with clients and share",
            )
        seed = made.seed
        before = None if self._truth is None else self._truth.facts.get("data_sha256")
        require_unchanged_data(made, before)
        parties = self._trace.manifest.federation.get("clients", ())
        train, task, planted = made.train, made.task, made.marks
        check_model_fits(task, self._trace)
        assert planted is not None
        if not planted.keys:
            raise NotApplicable(
                "the owner has no keys to test",
                code="no_keys_to_test",
                expected="marks.clients or marks.spare above 0",
                got="neither",
                remedy="mark clients, or set marks.spare = 3: keys that should point to nobody",
            )
        null_seed = self._seed.key("marks/null")
        extra: dict[str, Any] = {"marks": planted.family.marks(planted.keys, audit, null_seed)}
        if config.federation.weighting == "size":
            sizes = len(task.encode(train)) + len(planted.marked) * planted.records
            extra["mean_weight"] = sizes / len(parties)
        hook = config.protections.get("secure_aggregation")
        if hook is not None and hook.plan == "paired":
            extra["pairs"] = lambda number, count, first: query_plans.paired_plan(
                count,
                hook.size,
                hook.repeats,
                seed.generator("secure_aggregation/plan", number, first),
            )
        return Knowledge(task=task, extra=extra)

    def _shadows_for(self, audit: Any) -> ShadowFederations:
        """Federations that the adversary trains after the run's config."""
        if self._made is None:
            raise NotApplicable(
                "no shadow federations can be trained",
                code="no_shadows",
                expected="a run of fedaudit, whose config says how clients train",
                got="a trace alone",
                remedy="run the federation with fedaudit",
            )
        return shadows_of(
            self._made,
            self._trace,
            Seed(self._seed.key("shadows", audit.seed)),
            count=audit.shadows,
            vantage=audit.vantage,
            prior=audit.prior,
            protected=audit.protected,
            corpus=audit.corpus,
            data_sha256=None if self._truth is None else self._truth.facts.get("data_sha256"),
        )
