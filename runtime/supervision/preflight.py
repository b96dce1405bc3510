"""Before training starts on several machines: is this one's place right, and are all of them alike?"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import platform
import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from ..config.order import NodeGroup
from ..errors import ConfigurationError
from ..launchers.process import run

_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
_SIOCGIFADDR = 0x8915
_MOST_FILES = 5000
_ASK_VERSIONS = (
    "import json, platform; from importlib import metadata as m; d = {p.metadata['Name']: p.version for p in"
    " m.distributions()}; print(json.dumps([platform.python_version(), d.get('torch')]))"
)


@dataclass(frozen=True)
class Place:
    """Where this machine stands: `address` of the machine of rank 0 in numbers, and the interface that leads there."""

    address: str
    own_address: str
    interface: str


def find_place(group: NodeGroup) -> Place:
    """Check rank, address and port of this machine, as far as it can do so by itself.

    Raises:
        ConfigurationError: the address means nothing here, or another machine than it should.
    """
    address = _resolve(group)
    if group.rank == 0:
        _require_own(group, address)
    own_address = _route(address, group.port)
    return Place(address, own_address, _interface_of(own_address))


def python_files(folder: Path, *, skipped: Path) -> Iterator[Path]:
    """The Python files below a folder, in order; hidden, environment and run folders left out."""
    left = _MOST_FILES
    for root, folders, names in os.walk(folder):
        here = Path(root)
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in ("__pycache__", "node_modules", "site-packages")
            and (here / name).resolve() != skipped.resolve()
            and not (here / name / "pyvenv.cfg").exists()
        )
        for name in sorted(names):
            if name.endswith(".py") and left > 0:
                left -= 1
                yield here / name


def code_files(folder: Path, *, skipped: Path) -> dict[str, str]:
    """Digest of each of these files, by relative path."""
    found: dict[str, str] = {}
    for path in python_files(folder, skipped=skipped):
        with contextlib.suppress(OSError):
            name = path.relative_to(folder).as_posix().encode(errors="backslashreplace").decode()  # for a record
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    return found


def versions(python: str) -> dict[str, str]:
    """What must be equal on all machines."""
    found = {"forerun": _version("forerun"), "python": platform.python_version(), "torch": _version("torch")}
    if python != sys.executable:
        done = run([python, "-I", "-c", _ASK_VERSIONS], timeout_s=60.0)
        with contextlib.suppress(ValueError):
            found["python"], found["torch"] = [str(text) for text in json.loads(done.stdout)]
    return found


def unlike(first: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """How the facts of another node differ from those of node 0, in words that name the values."""
    node = other.get("node")
    lines = []
    for name in ("num_nodes", "processes", "backend", "max_restarts", "attempt"):
        if first.get(name) != other.get(name):
            lines.append(f"node {node} has {name} {other.get(name)!r}, node 0 has {first.get(name)!r}")
    ours, theirs = dict(first.get("versions") or {}), dict(other.get("versions") or {})
    for name in sorted({*ours, *theirs}):
        if ours.get(name) != theirs.get(name):
            lines.append(f"node {node} has {name} {theirs.get(name)}, node 0 has {ours.get(name)}")
    ours, theirs = dict(first.get("code") or {}), dict(other.get("code") or {})
    for path in sorted({*ours, *theirs}):
        if path not in theirs:
            lines.append(f"{path} is missing on node {node}")
        elif path not in ours:
            lines.append(f"{path} of node {node} is missing on node 0")
        elif ours[path] != theirs[path]:
            lines.append(f"{path} differs between node 0 and node {node}")
    return lines


def _resolve(group: NodeGroup) -> str:
    try:
        found = socket.getaddrinfo(group.address, group.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(
            f"main_process_ip {group.address!r} is no address that this machine knows: {error}",
            allowed="an address or a host name of the machine of rank 0",
            next_step="correct it, or give the numbers",
        ) from error
    address = str(sorted(found, key=lambda entry: entry[0] != socket.AF_INET)[0][4][0])
    if _is_loopback(address) and group.address.lower() not in _LOOPBACK_NAMES:
        raise ConfigurationError(
            f"main_process_ip {group.address!r} resolves to {address}, which other machines cannot reach",
            allowed="a name or an address that means the machine of rank 0 on every machine",
            next_step=f"give the numbers of its address, or correct the entry of {group.address} in /etc/hosts",
        )
    return address


def _require_own(group: NodeGroup, address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, group.port))
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise ConfigurationError(
                    f"machine_rank is 0, but {group.address} is no address of this machine ({socket.gethostname()})",
                    allowed="machine_rank 0 on the machine whose address is main_process_ip, others elsewhere",
                    next_step="correct --machine_rank or --main_process_ip",
                ) from error
            why = "in use" if error.errno == errno.EADDRINUSE else f"not available ({error.strerror})"
            raise ConfigurationError(
                f"port {group.port} is {why}",
                allowed="a port that is free on the machine of rank 0",
                next_step="give another --main_process_port on every machine",
            ) from error


def _route(address: str, port: int) -> str:
    """This machine's own address on the way to another; nothing is sent."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, port))
        except OSError as error:
            raise ConfigurationError(
                f"no way from this machine to {address}: {error.strerror}",
                allowed="machines in one network",
                next_step="check the network, or correct --main_process_ip",
            ) from error
        return str(probe.getsockname()[0])


def _interface_of(address: str) -> str:
    """Name of the interface with this IPv4 address; empty if it is not known."""
    for _, name in socket.if_nameindex():
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return ""


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"
