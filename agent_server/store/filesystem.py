"""On which file system a path lies: SQLite's write-ahead log needs shared memory, which no network share gives."""

from pathlib import Path

from runtime.errors import ConfigurationError

_NETWORK = frozenset(
    (
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "davfs",
        "gfs",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs3",
        "nfs4",
        "ocfs2",
        "orangefs",
        "panfs",
        "pvfs2",
        "smb2",
        "smb3",
        "smbfs",
    )
)
_NETWORK_FUSE = (
    "ceph",
    "dav",
    "gcs",
    "gluster",
    "goofys",
    "juicefs",
    "moose",
    "rclone",
    "s3",
    "smb",
    "sshfs",
    "wekafs",
)


def filesystem_type(path: Path, mounts: str) -> str:
    """The type of the file system that holds `path` (absolute, resolved), read from the text of /proc/mounts."""
    best, kind = -1, "unknown"
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        point = Path(fields[1].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\"))
        if (path == point or point in path.parents) and len(point.parts) >= best:
            best, kind = len(point.parts), fields[2]  # a later mount on the same point hides the earlier one
    return kind


def is_network(kind: str) -> bool:
    """Whether a file system of this type is shared over a network."""
    kind = kind.lower()
    return kind in _NETWORK or (kind.startswith("fuse") and kind.partition(".")[2].startswith(_NETWORK_FUSE))


def require_local(path: Path, *, mounts: str | None = None) -> None:
    """Refuse a database below a network mount.

    Raises:
        ConfigurationError: it lies on one.
    """
    if mounts is None:
        table = Path("/proc/mounts")
        mounts = table.read_text(errors="replace") if table.exists() else ""
    kind = filesystem_type(path.resolve(), mounts)
    if is_network(kind):
        raise ConfigurationError(
            f"the database {path} would lie on a network file system ({kind})",
            allowed="a local file system, since SQLite's locks and write-ahead log do not hold over a network",
            next_step="set FORERUN_STATE_DIR or FORERUN_DATABASE_URL to a local directory",
        )
