"""The public surface: few names, all of them real."""

import pytest

import fedaudit


def test_the_surface_is_small_and_sorted():
    assert 0 < len(fedaudit.__all__) <= 30
    assert list(fedaudit.__all__) == sorted(set(fedaudit.__all__))


@pytest.mark.parametrize("name", fedaudit.__all__)
def test_every_name_resolves(name):
    assert getattr(fedaudit, name) is not None
    assert getattr(fedaudit, name) is getattr(fedaudit, name)


def test_dir_lists_every_name():
    assert set(fedaudit.__all__) <= set(dir(fedaudit))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        fedaudit.no_such_name  # noqa: B018
