"""Sizes that a file declares are compared with its length before anything is allocated."""

import io
import pickle
import pickletools
import struct
import time
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mb_schema.declared_sizes import check_pickle, check_saved, pickle_in_archive

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
)


@given(VALUES, st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_every_pickle_of_the_standard_library_passes(value, protocol):
    check_pickle(pickle.dumps(value, protocol=protocol))


@given(VALUES, st.integers(0, pickle.HIGHEST_PROTOCOL), st.integers(0), st.integers(0, 255))
def test_a_changed_byte_is_no_other_error_than_in_pickle(value, protocol, position, byte):
    """A pickle that pickletools and pickle read passes, unless it numbers more objects than it has bytes."""
    content = bytearray(pickle.dumps(value, protocol=protocol))
    content[position % len(content)] = byte
    content = bytes(content)
    try:
        check_pickle(content)
    except pickle.UnpicklingError as error:
        if "numbered objects" not in str(error):
            with pytest.raises(Exception):  # noqa: B017, PT012
                pickletools.dis(content, io.StringIO())  # takes a mark for an object, which pickle does not
                pickle.loads(content)


LEVELS = {
    "tuples among lists": b"\x85]0",
    "tuples in the memo": b"\x85q\x00h\x000",
    "tuples with a mark": b"(N1\x85",
    "frozen sets": b"\x85q\x000(h\x00\x91",
    "calls": b"\x85q\x000cbuiltins\nslice\nh\x00R",
}
"""Opcodes that put the object on the stack into another one, which no run of equal opcodes shows."""
BOMBS = {
    "numbered object": b"\x80\x02Nr\xff\xff\xff\x7f.",
    "numbered object in text": b"Np2147483647\n.",
    "length": b"\x80\x04\x8d" + struct.pack("<Q", 6 * 10**9) + b"x.",
    "long number": b"\x80\x04\x8b" + struct.pack("<i", 2**31 - 1) + b"x.",
    "negative length": b"\x80\x04\x8b" + struct.pack("<i", -5) + b"x.",
    "depth": b"\x80\x02})" + b"\x85" * 200_000 + b"Ns.",
    **{f"depth of {name}": b"\x80\x02})" + levels * 200_000 + b"Ns." for name, levels in LEVELS.items()},
    "missing object": b"\x80\x02h\x00.",
    "missing item": b"\x80\x02\x85.",
    "cut": b"\x80\x04",
    "unknown": b"\x80\x04\xff.",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_pickle_does_not_declare_more_than_it_has(name):
    with pytest.raises(pickle.UnpicklingError):
        check_pickle(BOMBS[name])


def test_objects_of_many_levels_pass_up_to_the_limit():
    value = ()
    for _ in range(100):
        value = (value,)
    check_pickle(pickle.dumps(value))
    with pytest.raises(pickle.UnpicklingError, match="more than 100 levels"):
        check_pickle(pickle.dumps((value,)))


def test_lists_of_numbers_take_less_time_than_a_reader_in_python():
    content = pickle.dumps([7 * number % 50_000 for number in range(200_000)])

    def fastest(read):
        times = []
        for _ in range(7):  # a busy machine makes some of them slow
            began = time.process_time()
            read(content)
            times.append(time.process_time() - began)
        return min(times)

    assert fastest(check_pickle) < 0.7 * fastest(pickle._loads)


def archive(content, *, name="archive/data.pkl", compression=zipfile.ZIP_STORED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        # ZipInfo: its date is 1980, where a name has the time of the test
        made.writestr(zipfile.ZipInfo(name), content, compress_type=compression)
        made.writestr(zipfile.ZipInfo("archive/version"), "3", compress_type=compression)
    return buffer.getvalue()


BEFORE_ARCHIVES = [0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, {"step": 1}, []]
"""Pickles of a file of torch before 1.6, see torch.serialization._legacy_save."""


def test_files_of_torch_pass():
    found = pickle.dumps({"step": 1}, protocol=2)
    stream = io.BytesIO(b"before" + archive(found))
    stream.seek(6)
    assert check_saved(stream) == pickle_in_archive(stream) == found
    assert stream.tell() == 6
    pickles = b"".join(pickle.dumps(each, protocol=2) for each in BEFORE_ARCHIVES)
    assert check_saved(io.BytesIO(pickles + b"storage")) == pickles


def two_pickles():
    """Return an archive in which another reader may take another pickle than this one."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        for name in ("archive/data.pkl", "archive/DATA.PKL"):
            made.writestr(name, b"N.")
    return buffer.getvalue()


def larger_entry():
    """Return an archive whose directory declares a gigabyte."""
    made = bytearray(archive(b"x" * 1000))
    directory = made.index(b"PK\x01\x02")
    made[directory + 20 : directory + 28] = struct.pack("<II", 10**9, 10**9)
    return bytes(made)


COMPRESSED = archive(b"x" * 100, compression=zipfile.ZIP_DEFLATED)
HEAD = b"".join(pickle.dumps(each) for each in BEFORE_ARCHIVES[:3])
DEEP = BOMBS["depth of tuples among lists"]
REJECTED = [
    ("compressed entries", COMPRESSED),
    ("larger than the file", larger_entry()),
    ("no readable directory", archive(b"x")[:-30]),
    ("it has 0 pickles", archive(b"N.", name="archive/other")),
    ("it has 2 pickles", two_pickles()),
    ("more than 100 levels", archive(DEEP)),
    ("more than 100 levels", HEAD + DEEP),
    ("is cut short", HEAD),
    ("has an unknown opcode", b"no archive"),
    ("is cut short", b"PK\n" + COMPRESSED),
]


@pytest.mark.parametrize(("problem", "content"), REJECTED)
def test_other_files_are_rejected(problem, content):
    with pytest.raises(pickle.UnpicklingError, match=problem):
        check_saved(io.BytesIO(content))


def test_an_archive_after_other_bytes_is_none():
    with pytest.raises(pickle.UnpicklingError, match=r"not an archive of torch\.save"):
        pickle_in_archive(io.BytesIO(b"x" + COMPRESSED))
