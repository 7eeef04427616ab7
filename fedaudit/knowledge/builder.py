"""Build what the adversary of an audit brings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fedaudit.arrays import Bools
from fedaudit.audits.audit import Knowledge, Noise
from fedaudit.audits.outright import without_config
from fedaudit.errors import ConfigError, NotApplicable
from fedaudit.knowledge.candidates import candidates, candidates_and_enrolled, halves, population
from fedaudit.knowledge.dishonest import planted_rounds
from fedaudit.knowledge.groups import groups_of
from fedaudit.knowledge.noise import noise_of
from fedaudit.knowledge.owner_marks import OwnerMarks, missing_marks, other_documents
from fedaudit.knowledge.prior import prior_of
from fedaudit.knowledge.probing import build_games
from fedaudit.knowledge.record_sets import draw_sets
from fedaudit.knowledge.records import Records, check_model_fits, require_unchanged_data
from fedaudit.knowledge.rehearsal import as_members, production_of, rehearsals_of
from fedaudit.knowledge.shadows import Planted, ShadowFederations
from fedaudit.knowledge.shadows import Prior as ShadowPrior
from fedaudit.knowledge.shadows import of_run as shadows_of
from fedaudit.randomness import Seed
from fedaudit.setup.config import Config
from fedaudit.setup.marks import templates_of
from fedaudit.setup.prepare import Prepared, build
from fedaudit.trace import Trace, Truth
from fedaudit.trace.schema import SCALARS
from fedaudit.trace.truth import MembersOnly

if TYPE_CHECKING:
    from fedaudit.data.dataset import Dataset
    from fedaudit.tasks.task import Task


class KnowledgeBuilder:
    """Builds the knowledge of audits of one trace; records are loaded once, when first needed."""

    def __init__(
        self,
        trace: Trace,
        truth: Truth | None,
        seed: Seed,
        load_records: Callable[[], Records] | None,
        config: Config | Prepared | None = None,
        brought: Callable[[], tuple[OwnerMarks, Task]] | None = None,
    ) -> None:
        self._trace, self._truth, self._seed = trace, truth, seed
        self._load = load_records
        self._made = None if config is None else Prepared.of(config)
        self._config = None if self._made is None else self._made.config
        self._records: Records | None = None
        self._brought = brought

    def knowledge_for(self, audit: Any) -> tuple[Knowledge, Truth | None]:
        """What this audit's adversary brings, and the truth to score against."""
        if not audit.needs:
            return Knowledge(), self._truth
        build_for = {
            "marks": self._marks,
            "rehearsals": self._rehearsals,
            "games": self._games_for,
            "shadows": self._shadows_for,
            "prior": self._to_rebuild,
            "shadow_records": self._shadow_records,
            "record_sets": self._record_sets,
            "records": self._candidates,
        }
        for need, make in build_for.items():
            if need in audit.needs:
                return make(audit)
        return Knowledge(noise=self._noise), self._truth

    @cached_property
    def _noise(self) -> Noise | None:
        return noise_of(self._trace, self._truth, self._config)

    def _members(self, members: Mapping[str, Bools], records: Any = None) -> Truth:
        """The truth with these members; a file of given records names them even without a truth."""
        if self._truth is None:
            return MembersOnly(members, records)
        return self._truth.with_members(members, records)

    def _candidates(self, audit: Any) -> tuple[Knowledge, Truth]:
        """Candidate records of every client, and enrolled ones where the audit wants them."""
        records = self._load_once()
        more = audit.enrolled if "enrolled" in audit.needs else 0
        pools, enrolled, members, notes = candidates_and_enrolled(
            records, audit.records, more, self._seed
        )
        known = Knowledge(
            task=records.task,
            candidates=pools,
            noise=self._noise,
            extra={"enrolled": enrolled} if enrolled else {},
            notes=notes,
        )
        return known, self._members(members)

    def _shadow_records(self, audit: Any) -> tuple[Knowledge, Truth]:
        """Candidates, and shadows that train on a half of them each; the rest of the held-out
        records is the adversary's own."""
        if self._made is None:
            raise without_config("no shadow federations can be trained", "no_shadows")
        asked, own = halves(self._load_once(), self._seed)
        pools, members, notes = candidates(asked, audit.records, self._seed)
        shadows = self._trained_by(audit, prior="auto", reserved=asked.others)
        planted = {
            party: Planted(
                pool=pool,
                size=len(asked.task.encode(asked.own[party])),
                inverted=party in asked.inverted,
            )
            for party, pool in pools.items()
        }
        known = Knowledge(
            task=asked.task,
            candidates=pools,
            noise=self._noise,
            shadows=replace(shadows, planted=planted, online=audit.online),
            extra={
                "population": population(own, audit.population, self._seed),
                "groups": groups_of(asked, pools, audit.group, f"audits.{audit.name}"),
            },
            notes=(
                *notes,
                f"the adversary has {len(shadows.corpus):,} records of its own: each shadow's "
                "clients draw from half of them, with the class mix of their candidates",
            ),
        )
        return known, self._members(members)

    def _to_rebuild(self, audit: Any) -> tuple[Knowledge, Truth]:
        """Prior knowledge for rebuilding records; the truth holds the records."""
        records = self._load_once()
        pools, members, notes = candidates(records, audit.records, self._seed)
        prior = prior_of(records, None if self._config is None else self._config.training)
        planted, more = planted_rounds(
            self._made, self._trace, records, audit.kinds_planted, audit.vantage, self._seed
        )
        known = Knowledge(
            task=records.task,
            noise=self._noise,
            extra={"prior": prior, "planted": planted},
            notes=(*notes, *more),
        )
        asked = {party: (pool.x.numpy(), pool.y.numpy()) for party, pool in pools.items()}
        return known, self._members(members, asked)

    def _record_sets(self, audit: Any) -> tuple[Knowledge, Truth]:
        """Sets of clients' records without their names, and whose they are."""
        records = self._load_once()
        sets, owners, notes = draw_sets(
            records, audit.sizes, audit.records, audit.templates, self._seed
        )
        known = Knowledge(task=records.task, extra={"record_sets": sets}, notes=notes)
        return known, self._members(owners)

    def _load_once(self) -> Records:
        """The records that audits ask about."""
        if self._load is None:
            raise NotApplicable(
                "no records to ask about",
                code="no_records",
                expected="the records of a run, or a file of records",
                got="a trace alone",
                remedy="give records with `data`, and the model with `model`",
            )
        if self._records is None:
            self._records = self._load()
        return self._records

    def _games_for(self, audit: Any) -> tuple[Knowledge, Truth]:
        """Clients to play with, and the coins of the games."""
        records = self._load_once()
        games = build_games(audit, records, self._trace, self._config, self._seed)
        return Knowledge(extra={"games": games}), self._members(games.members)

    def _rehearsals(self, audit: Any) -> tuple[Knowledge, Truth]:
        """Rehearsals of the federation with canaries, and the coins that inserted them."""
        if self._made is None:
            raise without_config("no rehearsal of the federation", "no_rehearsal")
        parties = self._trace.manifest.federation.get("clients", ())
        federation, _ = build(self._made)
        if audit.mode == "production":
            played = production_of(audit, federation, self._trace, self._truth)
        else:
            played = rehearsals_of(audit, federation, parties, self._seed)
        known = Knowledge(extra={"rehearsals": tuple(r.seen for r in played)})
        return known, self._members(as_members(played))

    def _marks(self, audit: Any) -> tuple[Knowledge, Truth | None]:
        """The corpus owner's keys, and what the server knows: the pairs it drew, and weights."""
        made, config = self._made, self._config
        if SCALARS in self._trace.manifest.layouts:
            if self._brought is not None:
                raise other_documents(self._trace)
            return Knowledge(), self._truth  # clients met the owner's documents themselves
        if self._brought is not None:
            return self._marks_brought(audit, *self._brought()), self._truth
        if made is None or config is None or config.marks is None:
            raise missing_marks("a trace alone" if config is None else "a run without marks")
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
                remedy="mark clients, or set marks.spare = 3: keys that point to no client",
            )
        null_seed = self._seed.key("marks/null")
        view = self._trace.seen_by(*audit.vantage.split("+"))
        extra: dict[str, Any] = {}
        if audit.reads_templates(view):
            extra["templates"] = templates_of(
                planted.family, planted.keys, audit.windows, null_seed
            )
        else:
            extra["marks"] = planted.family.marks(planted.keys, audit, null_seed)
        if config.federation.weighting == "size":
            sizes = len(task.encode(train)) + len(planted.marked) * planted.records
            extra["mean_weight"] = sizes / len(parties)
        for hook in config.protections.values():
            if hook.draws_pairs:
                extra["pairs"] = lambda number, count, first, hook=hook: hook.paired_queries(
                    count, number, seed, first
                )
        return Knowledge(task=task, extra=extra), self._truth

    def _marks_brought(self, audit: Any, marks: OwnerMarks, task: Task) -> Knowledge:
        """Templates of the owner's own documents, for the model that was trained."""
        check_model_fits(task, self._trace)
        if audit.score_by not in ("default", "template"):
            raise ConfigError(
                f"audits.attribution.score_by = {audit.score_by!r} does not score documents",
                expected='"template" for marks that are brought',
                got=repr(audit.score_by),
                remedy="leave score_by out",
            )
        null_seed = self._seed.key("marks/null")
        return Knowledge(
            task=task, extra={"templates": marks.templates(task, audit.windows, null_seed)}
        )

    def _shadows_for(self, audit: Any) -> tuple[Knowledge, Truth | None]:
        """Federations that the adversary trains after the run's config."""
        shadows = self._trained_by(audit, prior=audit.prior, protected=audit.protected)
        return Knowledge(noise=self._noise, shadows=shadows), self._truth

    def _trained_by(
        self,
        audit: Any,
        *,
        prior: ShadowPrior,
        protected: bool = True,
        reserved: Dataset | None = None,
    ) -> ShadowFederations:
        if self._made is None:
            raise without_config("no shadow federations can be trained", "no_shadows")
        return shadows_of(
            self._made,
            self._trace,
            Seed(self._seed.key("shadows", audit.seed)),
            count=audit.shadows,
            vantage=audit.vantage,
            prior=prior,
            protected=protected,
            corpus=audit.corpus,
            data_sha256=None if self._truth is None else self._truth.facts.get("data_sha256"),
            reserved=reserved,
        )
