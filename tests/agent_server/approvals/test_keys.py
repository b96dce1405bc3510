"""Private keys lie encrypted and closed to others; only what was enrolled opens."""

import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from agent_server.approvals.keys import enroll, load_private_key, private_path, usable_keys
from agent_server.store.sql import SqlStore
from tests.fakes.approvals import START_S
from tools.domain.approval import ApproverKey, AssuranceLevel
from tools.domain.errors import InvalidInput, NotFound, Refused
from tools.signatures import public_pem

PASSPHRASE = "correct horse battery"


@pytest.fixture
def key(store: SqlStore, tmp_path: Path) -> ApproverKey:
    return enroll(store, tmp_path / "keys", approver="alice", passphrase=PASSPHRASE, now_s=START_S)


def test_the_private_key_is_encrypted_and_closed_to_others(tmp_path: Path, store: SqlStore, key: ApproverKey) -> None:
    path = private_path(tmp_path / "keys", key.key_id)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert path.read_bytes().startswith(b"-----BEGIN ENCRYPTED PRIVATE KEY-----")
    with pytest.raises(TypeError):
        load_pem_private_key(path.read_bytes(), None)
    assert public_pem(load_private_key(tmp_path / "keys", key, passphrase=PASSPHRASE)) == key.public_pem
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_enrolment_stands_in_the_store_and_in_the_audit_log(store: SqlStore, key: ApproverKey) -> None:
    assert store.keys() == [key]
    assert key.level is AssuranceLevel.A2
    last = store.audit_log()[-1]
    assert (last.event, last.subject, last.details["approver"]) == ("key_enrolled", key.key_id, "alice")


@pytest.mark.parametrize("passphrase", ["", "correct horse batterY"])
def test_a_wrong_passphrase_opens_nothing(tmp_path: Path, key: ApproverKey, passphrase: str) -> None:
    with pytest.raises(InvalidInput, match="passphrase is wrong"):
        load_private_key(tmp_path / "keys", key, passphrase=passphrase)


def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path, key: ApproverKey) -> None:
    private_path(tmp_path / "keys", key.key_id).chmod(0o640)
    with pytest.raises(Refused, match="mode 0640"):
        load_private_key(tmp_path / "keys", key, passphrase=PASSPHRASE)


def test_another_key_under_the_same_name_is_refused(tmp_path: Path, store: SqlStore, key: ApproverKey) -> None:
    other = enroll(store, tmp_path / "keys", approver="bob", passphrase=PASSPHRASE, now_s=START_S)
    path = private_path(tmp_path / "keys", key.key_id)
    path.write_bytes(private_path(tmp_path / "keys", other.key_id).read_bytes())
    with pytest.raises(Refused, match="another key"):
        load_private_key(tmp_path / "keys", key, passphrase=PASSPHRASE)


def test_a_key_of_another_machine_or_a_removed_one_is_not_usable(
    tmp_path: Path, store: SqlStore, key: ApproverKey
) -> None:
    assert usable_keys(store, tmp_path / "keys") == [key]
    assert usable_keys(store, tmp_path / "elsewhere") == []
    with pytest.raises(NotFound):
        load_private_key(tmp_path / "elsewhere", key, passphrase=PASSPHRASE)
    store.remove_key(key.key_id, actor="alice")
    assert usable_keys(store, tmp_path / "keys") == []


@pytest.mark.parametrize(
    ("approver", "passphrase"),
    [("", PASSPHRASE), ("  ", PASSPHRASE), ("a\x1b[2J", PASSPHRASE), ("x" * 65, PASSPHRASE), ("alice", "short")],
)
def test_a_name_or_passphrase_that_does_not_do_leaves_no_key(
    tmp_path: Path, store: SqlStore, approver: str, passphrase: str
) -> None:
    with pytest.raises(InvalidInput):
        enroll(store, tmp_path / "keys", approver=approver, passphrase=passphrase, now_s=START_S)
    assert store.keys() == []
    assert not (tmp_path / "keys").exists()


def test_a_directory_that_others_can_write_holds_no_key(tmp_path: Path, store: SqlStore) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys").chmod(0o777)
    with pytest.raises(Refused, match="writable by others"):
        enroll(store, tmp_path / "keys", approver="alice", passphrase=PASSPHRASE, now_s=START_S)
    assert list((tmp_path / "keys").iterdir()) == []
