"""Versions and bounds; the right order is that of `packaging`, where it is installed."""

import itertools

import pytest

from mb_guard.versions import installed_version, within

ORDERED = ["0.9", "0.19.0rc1", "0.19.0", "0.19.0.post1", "0.19.2", "0.20.0.dev3", "0.20.0", "1.0", "2.11.0"]


def test_versions_are_ordered_as_packaging_orders_them():
    version = pytest.importorskip("packaging.version").Version
    for first, second in itertools.product(ORDERED, ORDERED):
        assert within(first, f">={second}") == (version(first) >= version(second)), (first, second)
        assert within(first, f"<{second}") == (version(first) < version(second)), (first, second)


def test_a_local_part_does_not_count():
    assert within("2.11.0+cu130", "==2.11.0")
    assert within("2.11", ">=2.11.0,!=2.12")


@pytest.mark.parametrize(("version", "bounds"), [("1.0", "2.0"), ("newest", ">=1.0"), ("1.0", ">=x")])
def test_what_is_not_a_bound_is_rejected(version, bounds):
    with pytest.raises(ValueError, match=r"a bound begins with|not a version"):
        within(version, bounds)


def test_a_checkout_of_megatron_hides_the_installed_distribution(tmp_path, monkeypatch):
    core = tmp_path / "megatron" / "core"
    core.mkdir(parents=True)
    (core / "__init__.py").touch()
    (core / "package_info.py").write_text("MAJOR = 0\nMINOR = 20\nPATCH = 1\nPRE_RELEASE = 'rc2'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("megatron", "megatron.core"):
        monkeypatch.delitem(__import__("sys").modules, name, raising=False)
    assert installed_version("megatron-core") == "0.20.1rc2"


def test_a_library_that_is_not_installed_has_no_version():
    assert installed_version("no-such-library") is None
