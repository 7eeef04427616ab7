"""Where audits of one trace ask for what their adversary brings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fedaudit.audits.audit import Knowledge
from fedaudit.errors import NotApplicable
from fedaudit.knowledge.candidates import candidates
from fedaudit.knowledge.noise import noise_of
from fedaudit.knowledge.records import Records, fits, same_data
from fedaudit.randomness import Seed
from fedaudit.setup.config import Config
from fedaudit.stats import query_plans
from fedaudit.trace import Trace, Truth
from fedaudit.trace.truth import MembersOnly

if TYPE_CHECKING:
    from fedaudit.knowledge.shadows import ShadowFederations


class Desk:
    """Where audits of one trace ask for knowledge; each part is made once, when first needed."""

    def __init__(
        self,
        trace: Trace,
        truth: Truth | None,
        seed: Seed,
        load_records: Callable[[], Records] | None,
        config: Config | None = None,
    ) -> None:
        self._trace, self._truth, self._seed = trace, truth, seed
        self._load, self._config = load_records, config
        self._records: Records | None = None

    def knowledge_for(self, audit: Any) -> tuple[Knowledge, Truth | None]:
        """What this audit's adversary brings, and the truth that can answer it."""
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
        records = self._asked()
        pools, members, notes = candidates(records, audit.records, self._seed)
        known = Knowledge(task=records.task, candidates=pools, noise=noise, notes=notes)
        # a file of records tells members even where nothing else of the truth is known
        truth = MembersOnly(members) if self._truth is None else self._truth.with_members(members)
        return known, truth

    def _asked(self) -> Records:
        """The records that audits ask about, loaded once."""
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
        from fedaudit.knowledge import probing

        games = probing.table(audit, self._asked(), self._trace, self._config, self._seed)
        members = games.members
        truth = MembersOnly(members) if self._truth is None else self._truth.with_members(members)
        return Knowledge(extra={"games": games}), truth

    def _marks(self, audit: Any) -> Knowledge:
        """The corpus owner's keys, and the server's own notes: which pairs it drew, and weights."""
        from fedaudit.setup.marks import plant

        config = self._config
        if config is None or config.marks is None:
            raise NotApplicable(
                "no keys to look for marks with",
                code="no_keys",
                expected="a run with [marks], whose private config holds the owner's keys",
                got="a trace alone" if config is None else "a run without marks",
                remedy="plant marks: [marks] with clients and share",
            )
        seed = Seed(config.seed)
        before = None if self._truth is None else self._truth.facts.get("data_sha256")
        train, test = same_data(config, seed, before)
        parties = self._trace.manifest.federation.get("clients", ())
        task = config.task.build(train, seed)
        fits(task, self._trace)
        planted = plant(config, task, train, test, len(parties), seed)
        assert planted is not None
        if not planted.keys:
            raise NotApplicable(
                "the owner has no keys to test",
                code="no_keys_to_test",
                expected="marks.clients or marks.spare above 0",
                got="neither",
                remedy="with nobody marked set marks.spare = 3: keys that should name no one",
            )
        null_seed = self._seed.key("marks/null")
        extra: dict[str, Any] = {"marks": planted.family.desk(planted.keys, audit, null_seed)}
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
        """Federations of the adversary's own, after the run's config."""
        from fedaudit.knowledge.shadows import of_run as shadows_of

        if self._config is None:
            raise NotApplicable(
                "no shadow federations can be trained",
                code="no_shadows",
                expected="a run of fedaudit, whose config says how clients train",
                got="a trace alone",
                remedy="run the federation with fedaudit, or rebuild it as a config first",
            )
        return shadows_of(
            self._config,
            self._trace,
            Seed(self._seed.key("shadows", audit.seed)),
            count=audit.shadows,
            vantage=audit.vantage,
            prior=audit.prior,
            protected=audit.protected,
            corpus=audit.corpus,
            data_sha256=None if self._truth is None else self._truth.facts.get("data_sha256"),
        )
