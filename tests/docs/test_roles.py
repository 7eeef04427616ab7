"""docs/roles: a page per role that is short; its configs are configs (commands: test_site.py)."""

import re
import tomllib
from pathlib import Path

import pytest

from fedaudit.setup.config import check

ROLES = Path(__file__).parents[2] / "docs" / "roles"
PAGES = sorted(ROLES.glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_of_a_role_is_short(page):
    assert len(page.read_text(encoding="utf-8").splitlines()) <= 60


def test_the_trial_of_a_corpus_owner_is_a_config():
    text = (ROLES / "corpus-owner.md").read_text(encoding="utf-8")
    (toml,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    config = check(tomllib.loads(toml))
    assert "attribution" in config.audits
    assert "secure_aggregation" in config.protections
