"""Only regular files are opened: whatever else is in their place is named, and not waited for."""

import os

import pytest

from bartizan._util.regular_files import NotRegularError, open_regular, read_regular
from places import KINDS, put


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["rb", "r+b", "wb", "ab"])
def test_what_is_no_regular_file_is_not_opened(kind, mode, tmp_path):
    put(kind, tmp_path / "place")
    with pytest.raises(OSError, match="place") as error:
        open_regular(tmp_path / "place", mode)
    assert isinstance(error.value, NotRegularError) or kind == "a link to itself"


def test_a_regular_file_is_opened_as_by_open(tmp_path):
    path = tmp_path / "file"
    with open_regular(path, "wb") as file:
        file.write(b"ab")
    with open_regular(path, "ab") as file:
        file.write(b"c")
    (tmp_path / "link").symlink_to(path)
    with open_regular(tmp_path / "link") as file:
        assert file.read() == b"abc"
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "none")
    assert os.stat(path).st_mode & 0o600 == 0o600


def test_what_comes_into_the_place_of_a_file_after_the_first_look_is_found(tmp_path, monkeypatch):
    path = tmp_path / "place"
    put("a named pipe", path)
    monkeypatch.setattr(os.path, "exists", lambda path: False)
    with pytest.raises(NotRegularError, match="it is a named pipe"):
        open_regular(path)


def test_a_file_beyond_the_limit_is_not_read(tmp_path):
    (tmp_path / "place").write_bytes(b"abc")
    assert read_regular(tmp_path / "place", 3) == b"abc"
    with pytest.raises(NotRegularError, match="it has 3 bytes, and up to 2 are read"):
        read_regular(tmp_path / "place", 2)
    os.truncate(tmp_path / "place", 2**40)
    with pytest.raises(NotRegularError, match="it has 1,099,511,627,776 bytes"):
        read_regular(tmp_path / "place")
