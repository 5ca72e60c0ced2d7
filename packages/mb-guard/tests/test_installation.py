"""The engine, on a small library that each test writes to a folder."""

import hashlib
import importlib
import subprocess
import sys

import pytest

import mb_guard
from mb_guard.catalogue import FAULTS
from mb_guard.fault import Fault, Patch
from mb_guard.installation import Guard
from mb_guard.sources import installed_hash

LIBRARY = """
def price(weight):
    # in euros
    return 2 * weight

    # the end


class Shop:
    @staticmethod
    def total(weights):
        return sum(price(each) for each in weights)
"""


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Write a library `fruit_shop` 1.2, and return the folder; the test's imports are undone."""
    (tmp_path / "fruit_shop").mkdir()
    (tmp_path / "fruit_shop" / "__init__.py").write_text("")
    (tmp_path / "fruit_shop" / "prices.py").write_text(LIBRARY)
    (tmp_path / "fruit_shop" / "bill.py").write_text("from fruit_shop.prices import price\n")
    (tmp_path / "fruit_shop-1.2.dist-info").mkdir()
    (tmp_path / "fruit_shop-1.2.dist-info" / "METADATA").write_text("Name: fruit-shop\nVersion: 1.2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("fruit_shop")]:
        del sys.modules[name]


def triple(price):
    return lambda weight: 3 * price(weight)


def record(**changes):
    hashes = {"price": "390cf0d40f18edda", "Shop.total": "TOTAL"}
    target = changes.pop("target", "price")
    patch = Patch(
        wrap=changes.pop("wrap", triple),
        module="fruit_shop.prices",
        target=target,
        sources=changes.pop("sources", (hashes[target],)),
        needed=changes.pop("needed", lambda module: True),
    )
    fields = {
        "id": "cheap-fruit",
        "effect": "wrong number",
        "summary": "Prices are too low.",
        "shows": "Silent.",
        "versions": {"fruit-shop": ">=1.0,<=1.2"},
        "action": "put right",
        "test": "none",
        "patches": (patch,),
    }
    return Fault(**{**fields, **changes})


def guard(*faults, **environment):
    lines = []
    made = Guard(faults, environment=environment, report=lines.append)
    made.apply()
    return made, lines


def states(made):
    return {name: status.state for name, status in made.statuses.items()}


def test_sources_are_read_as_utf_8_in_any_locale(tmp_path):
    (tmp_path / "menu.py").write_text("def price():\n    return 'café'\n", encoding="utf-8")
    code = (
        "import mb_guard.sources as s; print(s.defines('menu', 'price'), s.installed_hash('menu', 'price'))"
    )
    ascii_locale = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=ascii_locale, capture_output=True, text=True, check=True
    )
    expected = hashlib.sha256("def price():\n    return 'café'".encode()).hexdigest()[:16]
    assert ended.stdout.split() == ["True", expected]


def test_the_hash_is_of_the_lines_of_the_function(library):
    # sha256 of the two lines of code and the comment between them, without the comment behind them
    assert installed_hash("fruit_shop.prices", "price") == "390cf0d40f18edda"
    assert installed_hash("fruit_shop.prices", "Shop.total") is not None
    assert installed_hash("fruit_shop.prices", "Shop.missing") is None
    assert installed_hash("fruit_shop.missing", "price") is None
    assert installed_hash("no_such_library", "price") is None


def test_a_module_is_corrected_when_it_is_imported(library):
    made, _ = guard(record())
    assert states(made) == {"cheap-fruit": "pending"}
    bill = importlib.import_module("fruit_shop.bill")
    assert bill.price(1) == 6
    assert states(made) == {"cheap-fruit": "put right"}


def test_a_module_that_is_imported_already_is_corrected_with_the_copies_of_its_names(library):
    bill = importlib.import_module("fruit_shop.bill")
    made, _ = guard(record())
    assert (bill.price(1), states(made)) == (6, {"cheap-fruit": "put right"})


def test_without_finds_the_copies_that_are_made_later(library):
    prices = importlib.import_module("fruit_shop.prices")
    made, _ = guard(record())
    with made.without("cheap-fruit"):
        bill = importlib.import_module("fruit_shop.bill")
        assert bill.price(1) == 2
    assert bill.price(1) == 6
    bill.again = prices.price
    with made.without("cheap-fruit"):
        assert (bill.price(1), bill.again(1)) == (2, 2)
    assert (bill.price(1), bill.again(1)) == (6, 6)


def test_without_takes_a_correction_out_and_puts_it_back(library):
    bill = importlib.import_module("fruit_shop.bill")
    made, _ = guard(record(), record(id="other"))
    assert bill.price(1) == 18
    with made.without("other"):
        assert bill.price(1) == 6
        with made.without("cheap-fruit"):
            assert bill.price(1) == 2
    assert bill.price(1) == 18


def test_the_function_itself_is_replaced_so_that_a_call_costs_nothing_more(library):
    replacement = lambda weight: 5  # noqa: E731
    guard(record(wrap=lambda price: replacement))
    assert importlib.import_module("fruit_shop.prices").price is replacement


def test_a_static_method_stays_one(library):
    total = installed_hash("fruit_shop.prices", "Shop.total")
    guard(record(target="Shop.total", wrap=lambda total: lambda weights: -total(weights), sources=(total,)))
    assert importlib.import_module("fruit_shop.prices").Shop().total([1, 2]) == -6


def test_a_function_that_is_not_known_is_left_as_it_is_and_reported(library):
    file = library / "fruit_shop" / "prices.py"
    file.write_text(file.read_text().replace("2 * weight", "4 * weight"))
    made, lines = guard(record())
    assert importlib.import_module("fruit_shop.prices").price(1) == 4
    assert states(made) == {"cheap-fruit": "unknown source"}
    assert lines[0].startswith(
        "mb_guard: cheap-fruit is not put right: fruit_shop.prices.price differs from the versions that are known"
    )


def test_a_fault_with_one_unknown_function_is_not_half_corrected(library):
    fault = record()
    both = record(patches=(*fault.patches, *record(target="Shop.total").patches))
    guard(both)
    assert importlib.import_module("fruit_shop.prices").price(1) == 2


def test_a_function_that_another_library_has_replaced_is_left_as_it_is(library):
    prices = importlib.import_module("fruit_shop.prices")
    prices.price = lambda weight: 7
    made, [line] = guard(record())
    assert (prices.price(1), states(made)) == (7, {"cheap-fruit": "unknown source"})
    assert line.endswith("fruit_shop.prices.price has been replaced by another library")


def test_an_environment_without_the_fault(library):
    importlib.import_module("fruit_shop.prices")
    made, _ = guard(record(needed=lambda module: False))
    assert states(made) == {"cheap-fruit": "not needed"}


@pytest.mark.parametrize(
    ("bounds", "sources", "state"),
    [
        ({"fruit-shop": "<1.2"}, None, "pending"),  # the same function in a later version has the same fault
        ({"fruit-shop": "<1.2"}, ("0",), "other version"),
        ({"fruit-shop": ">=1.0"}, ("0",), "unknown source"),
        ({"vegetable-shop": ">=1.0"}, None, "not installed"),
    ],
)
def test_versions(library, bounds, sources, state):
    made, _ = guard(record(versions=bounds, **({"sources": sources} if sources else {})))
    assert states(made) == {"cheap-fruit": state}


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("", ["pending", "pending"]),
        ("off", ["off", "off"]),
        ("warn", ["to know", "to know"]),
        ("b", ["off", "pending"]),
        ("-b", ["pending", "off"]),
    ],
)
def test_the_environment_chooses(library, variable, expected):
    made, _ = guard(record(id="a"), record(id="b"), MB_GUARD=variable)
    assert list(states(made).values()) == expected


def test_an_unknown_fault_in_the_environment_is_rejected():
    with pytest.raises(
        mb_guard.UnknownFaultError, match=r"MB_GUARD=c: there is no fault c. Choose off, warn"
    ):
        guard(record(), MB_GUARD="c")


def test_an_unknown_fault_is_rejected_with_near_ones():
    near = FAULTS[0].id
    with pytest.raises(mb_guard.UnknownFaultError, match=f"Did you mean {near}"):
        mb_guard.find_fault(near[:-1])
    with pytest.raises(mb_guard.UnknownFaultError, match=r"xyz: there is no fault of that id. Known: "):
        mb_guard.find_fault("xyz")
    with pytest.raises(mb_guard.UnknownFaultError), mb_guard.without("xyz"):
        pass


def test_the_line_of_an_installation(library):
    known = record(id="known", action="warn", patches=())
    made, _ = guard(record(), known, record(id="newer", sources=("0",)))
    assert made.report().line() == (
        "guarded: 1 fault put right, 2 to know (1 of them in a function that is not known); "
        "mb-guard doctor lists them"
    )
