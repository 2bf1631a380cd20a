"""Files that are written whole, and places that are found to take none before any work is done."""

import os
from pathlib import Path

import pytest

from forerun.core.errors import ConfigError
from forerun.core.output_file import require_writable, write_whole

FULL = OSError(28, "No space left on device")


def test_a_place_that_takes_a_file_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    require_writable(tmp_path / "old")
    require_writable(tmp_path / "new")
    require_writable(tmp_path / "a" / "b" / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old").read_text() == "old"


@pytest.mark.parametrize(
    ("name", "obstacle"),
    [
        (".", "it is a folder"),
        ("file/below", ".*is not a folder"),
        ("gone/below", "there is no folder .*gone"),
        ("n" * 300, "File name too long"),
    ],
)
def test_what_stands_in_the_way_is_told(tmp_path: Path, name: str, obstacle: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=rf"cannot be written \(({obstacle}).*\): name another file"):
        require_writable(tmp_path / name, needs_folder=True)


@pytest.mark.parametrize("name", ["file", "link"])
def test_a_file_is_replaced_whole_or_not_at_all(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link, as people have in folders that are kept in step, leads to a file that is as dear as any."""
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("file")

    def refuse(_: int) -> None:
        raise FULL

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(ConfigError, match="No space left"):
        write_whole(tmp_path / name, "new")
    assert (tmp_path / name).read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]


def test_a_link_or_a_device_stays_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("file")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "file").read_text() == "new"
    assert (tmp_path / "link").is_symlink()
    (tmp_path / "nowhere").symlink_to("later")
    write_whole(tmp_path / "nowhere", "new")
    assert (tmp_path / "later").read_text() == "new"
    os.mkfifo(tmp_path / "pipe")
    require_writable(tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "round").symlink_to("round")
    for refused in (lambda: require_writable(tmp_path / "round"), lambda: write_whole(tmp_path / "round", "new")):
        with pytest.raises(ConfigError, match="cannot be written"):
            refused()


def test_a_file_that_may_not_be_written_to_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    monkeypatch.setattr(os, "access", lambda *_: False)  # as for a user without the rights of root
    for refused in (lambda: require_writable(path), lambda: write_whole(path, "new")):
        with pytest.raises(ConfigError, match="it is read-only"):
            refused()
    assert path.read_text() == "old"
