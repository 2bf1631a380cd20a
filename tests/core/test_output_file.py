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


def test_a_full_disk_is_seen_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, data: bytes) -> int:
        raise FULL

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(ConfigError, match=r"^.*new cannot be written \(No space left on device\): name another file$"):
        require_writable(tmp_path / "new")


@pytest.mark.parametrize(
    ("name", "obstacle"),
    [
        (".", "it is a folder"),
        ("file/below", ".*is no folder"),
        ("gone/below", "there is no folder .*gone"),
        ("n" * 300, "File name too long"),
    ],
)
def test_what_stands_in_the_way_is_told(tmp_path: Path, name: str, obstacle: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=rf"cannot be written \(({obstacle}).*\): name another file"):
        require_writable(tmp_path / name, needs_folder=True)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_whole(path, "old")

    def stop_halfway(self: Path, raw: bytes) -> int:
        self.write_text(raw.decode()[:1])
        raise FULL

    monkeypatch.setattr(Path, "write_bytes", stop_halfway)
    with pytest.raises(ConfigError, match="No space left"):
        write_whole(path, "new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_or_a_device_stays_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("file")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "file").read_text() == "new"
    assert (tmp_path / "link").is_symlink()
    os.mkfifo(tmp_path / "pipe")
    require_writable(tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()


def test_a_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o600)
    write_whole(path, "new")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o600)


def test_a_file_that_may_not_be_written_to_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    monkeypatch.setattr(os, "access", lambda *_: False)  # as for a user without the rights of root
    for refused in (lambda: require_writable(path), lambda: write_whole(path, "new")):
        with pytest.raises(ConfigError, match="it may not be written to"):
            refused()
    assert path.read_text() == "old"
