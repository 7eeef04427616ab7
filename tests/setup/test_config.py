"""One TOML file is one experiment: checked whole, resolved whole, and silent about its seed."""

import tomllib

import pytest

from fedaudit.errors import ConfigError, UsageError
from fedaudit.setup.config import DEFAULT, check, load
from fedaudit.setup.toml import to_toml, toml_value


@pytest.mark.parametrize(
    ("section", "nearest"),
    [
        ({"trainng": {}}, "training"),
        ({"data": {"nmae": "digits"}}, "name"),
        ({"data": {"name": "digits", "test_fracton": 0.1}}, "test_fraction"),
        ({"data": {"name": "one-hot", "dimensoin": 4}}, "dimension"),
        ({"data": {"name": "digts"}}, "digits"),
        ({"data": {"path": "x.csv", "lable": "y"}}, "label"),
        ({"partition": {"knd": "iid"}}, "kind"),
        ({"partition": {"kind": "dirichlt"}}, "dirichlet"),
        ({"partition": {"kind": "dirichlet", "alpah": 1.0}}, "alpha"),
        ({"task": {"kind": "mpl"}}, "mlp"),
        ({"task": {"kind": "mlp", "hiden": [3]}}, "hidden"),
        ({"topology": {"kind": "rng"}}, "ring"),
        ({"topology": {"kind": "hierarchical", "sizs": [3]}}, "sizes"),
        ({"federation": {"cliens": 3}}, "clients"),
        ({"training": {"learning_rat": 0.1}}, "learning_rate"),
        ({"protections": {"shufle": {}}}, "shuffle"),
        ({"audits": {"fingerprnt": {}}}, "fingerprint"),
        ({"audits": {"fingerprint": {"vantag": "server"}}}, "vantage"),
        ({"trace": {"tensor": ["*"]}}, "tensors"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_at_every_level(section, nearest):
    with pytest.raises(ConfigError) as caught:
        check(section)
    assert f"did you mean {nearest!r}" in caught.value.remedy
    assert caught.value.exit_code == 2


def test_a_protection_without_settings_says_so():
    with pytest.raises(ConfigError, match=r"unknown key protections\.shuffle\.order"):
        check({"protections": {"shuffle": {"order": 1}}})


@pytest.mark.parametrize(
    "section",
    [
        {"seed": "1"},
        {"seed": 1.0},
        {"seed": True},
        {"seed": -1},
        {"seed": 2**64},
        {"data": "digits"},
        {"data": {"path": 5}},
        {"data": {"name": ["digits"]}},
        {"data": {"name": "digits", "test_fraction": "0.2"}},
        {"data": {"name": "digits", "test_fraction": True}},
        {"data": {"name": "digits", "test_fraction": 1.0}},
        {"data": {"name": "digits", "standardise": "yes"}},
        {"data": {"name": "one-hot", "records": "5"}},
        {"data": {"name": "digits", "path": "x.csv"}},
        {"data": {"path": "x.csv", "ignore": "id"}},
        {"data": {"path": "x.csv", "size": [8]}},
        {"data": {"path": "x.csv", "missing": "guess"}},
        {"partition": {"kind": 3}},
        {"partition": {"kind": "dirichlet", "alpha": "0.3"}},
        {"partition": {"kind": "dirichlet", "alpha": 0.0}},
        {"task": {"kind": ["mlp"]}},
        {"task": {"kind": "mlp", "hidden": 128}},
        {"task": {"kind": "mlp", "hidden": ["128"]}},
        {"topology": {"kind": {}}},
        {"topology": {"kind": "hierarchical", "sizes": "5"}},
        {"topology": {"kind": "erdos_renyi", "p": "0.3"}},
        {"topology": {"kind": "edge_list"}},
        {"federation": {"clients": "5"}},
        {"federation": {"rounds": 0}},
        {"federation": {"aggregation": "mean"}},
        {"training": {"learning_rate": "0.1"}},
        {"training": {"learning_rate": float("nan")}},
        {"protections": {"shuffle": True}},
        {"protections": ["shuffle"]},
        {"audits": {"coverage": 1}},
        {"audits": {"fingerprint": {"confidence": "high"}}},
        {"trace": {"dtype": "float8"}},
        {"trace": {"raw_updates": 1}},
    ],
)
def test_a_wrong_type_or_value_is_refused(section):
    with pytest.raises(UsageError) as caught:
        check(section)
    assert caught.value.exit_code == 2
    assert caught.value.remedy


def test_the_built_in_config_is_what_no_config_gives():
    assert load().raw == check(tomllib.loads(DEFAULT)).raw
    assert load().federation.clients == 20
    assert set(load().protections) == {"shuffle"}


def test_the_resolved_config_is_whole_and_resolves_to_itself():
    first = load(overrides=["topology.kind=hierarchical", "topology.sizes=[12, 8]"])
    again = check(tomllib.loads(to_toml(first.raw)))
    assert again == first
    assert again.sha256 == first.sha256
    # defaults are written out, so that another version's defaults cannot change a run
    assert first.raw["training"]["sampling"] == "shuffle"
    assert first.raw["federation"]["participation"] == 1.0


def test_identity_knows_settings_but_neither_seed_nor_audits():
    base = load()
    assert load(seed=77).sha256 == base.sha256
    assert load(overrides=["audits.fingerprint.confidence=0.9"]).sha256 == base.sha256
    assert load(overrides=["federation.rounds=11"]).sha256 != base.sha256
    assert load(overrides=["federation.rounds=10"]).sha256 == base.sha256


def test_the_public_part_holds_neither_seed_nor_names(tmp_path):
    names = [f"Clinic {i}" for i in range(20)]
    edges = tmp_path / "edges.csv"
    config = load(
        overrides=[
            "topology.kind=edge_list",
            f"topology.path={toml_value(str(edges))}",
            f"topology.clients={toml_value(names)}",
        ],
        seed=424242,
    )
    text = to_toml(config.public())
    assert "424242" not in text
    assert "Clinic" not in text
    assert "Clinic" in to_toml(config.raw)


def test_overrides_are_toml_or_bare_words():
    config = load(
        overrides=["federation.clients=5", "training.optimizer=adam", "task.hidden=[4, 4]"]
    )
    assert config.federation.clients == 5
    assert config.training.optimizer == "adam"
    assert config.task.hidden == (4, 4)


def test_naming_another_kind_drops_what_belonged_to_the_old_one():
    # in whatever order the two are given
    config = load(overrides=["task.width=8", "task.kind=vit", "partition.kind=iid"])
    assert config.raw["task"]["width"] == 8
    assert "hidden" not in config.raw["task"]
    assert config.raw["partition"] == {"kind": "iid"}
    same = load(overrides=["task.kind=mlp"])
    assert same.task.hidden == (128,)
    data = load(
        {"data": {"path": "x.csv", "label": "y", "test_fraction": 0.3}},
        overrides=["data.name=digits"],
    )
    assert data.data == {"name": "digits", "test_fraction": 0.3}


@pytest.mark.parametrize("text", ["rounds", "=3", "federation.=3", "seed.x=3"])
def test_an_override_names_a_setting(text):
    with pytest.raises(ConfigError):
        load(overrides=[text])


def test_text_gets_a_language_model_by_default():
    assert check({"data": {"name": "docs"}}).task.kind == "gpt"
    assert check({"data": {"path": "notes.jsonl.gz"}}).task.kind == "gpt"
    assert check({"data": {"path": "table.csv"}}).task.kind == "mlp"


@pytest.mark.parametrize(
    "value", ["a\x7fb", 'quote " and \\', "tab\t", "ünï", True, 3, 0.25, float("inf"), [1, [2]], []]
)
def test_values_survive_toml(value):
    assert tomllib.loads(f"v = {toml_value(value)}")["v"] == value


def test_a_syntax_error_names_the_line(tmp_path):
    file = tmp_path / "bad.toml"
    file.write_text("seed = 1\n[data]\nname = digits\n")
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert "line 3" in caught.value.got
    assert str(file) in caught.value.what


@pytest.mark.parametrize(
    ("key", "value"), [("learning_rate", -1), ("momentum", 1.0), ("weight_decay", -0.5)]
)
def test_a_rate_out_of_range_is_named_by_its_key(key, value):
    with pytest.raises(ConfigError, match=f"training.{key} is out of range") as refused:
        check({"training": {key: value}})
    assert float(refused.value.got) == value


def test_a_file_without_any_setting_is_a_mistake(tmp_path):
    file = tmp_path / "empty.toml"
    file.write_text("# nothing yet\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"empty\.toml is empty"):
        load(file)
