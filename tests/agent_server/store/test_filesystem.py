"""Databases are refused on network file systems."""

from pathlib import Path

import pytest

from agent_server.store.filesystem import filesystem_type, is_network, require_local
from runtime.errors import ConfigurationError

MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
server:/home /home nfs4 rw,vers=4.2 0 0
/dev/sdb1 /home/local xfs rw 0 0
//nas/share /mnt/my\\040share cifs rw 0 0
tmpfs /over tmpfs rw 0 0
host:/x /over fuse.sshfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/x", "ext4"),
        ("/home/user/state", "nfs4"),
        ("/homework/x", "ext4"),
        ("/home/local/state", "xfs"),
        ("/mnt/my share/state", "cifs"),
        ("/over/x", "fuse.sshfs"),
    ],
)
def test_the_nearest_mount_decides(path: str, kind: str) -> None:
    assert filesystem_type(Path(path), MOUNTS) == kind


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "lustre", "9p", "fuse.sshfs", "fuse.s3fs", "ceph"])
def test_network_file_systems_are_known(kind: str) -> None:
    assert is_network(kind)


@pytest.mark.parametrize("kind", ["ext4", "ext2/ext3", "xfs", "btrfs", "overlay", "tmpfs", "fuseblk", "zfs", "unknown"])
def test_local_file_systems_are_not_refused(kind: str) -> None:
    assert not is_network(kind)


def test_a_database_on_a_network_share_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigurationError, match=r"network file system \(nfs4\).*FORERUN_STATE_DIR"):
        require_local(Path("/home/user/.local/state/forerun/forerun.db"), mounts=MOUNTS)


def test_a_local_database_is_taken(tmp_path: Path) -> None:
    require_local(tmp_path / "forerun.db")
