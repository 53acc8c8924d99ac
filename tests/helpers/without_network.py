"""Runs a command in a network that leads nowhere, and writes down what it tries to send.

    unshare --map-root-user --net python -m tests.helpers.without_network LOG COMMAND...

``unshare`` (util-linux) gives the command a network of its own, where the kernel allows that. In it every address there
is belongs to this machine, so that a lookup or a connection of any process, of whatever language, is a packet on the
loopback device. This program listens there, and no one answers. Where it is not allowed, ``without_network`` runs the
command with the watch over Python's sockets alone (watch_python/), which sees nothing of W&B's service in Go.
"""

import contextlib
import fcntl
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
UNSHARE = ("unshare", "--map-root-user", "--net")


def network_of_its_own() -> bool:
    """Whether this user may make one here."""
    try:
        return subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def without_network(
    command: list[str], folder: Path, environment: dict[str, str], log: Path
) -> subprocess.CompletedProcess[str]:
    """Runs a command in ``folder``; whom it tried to reach is in ``log``, one a line."""
    log.touch()
    path = os.pathsep.join([str(ROOT / "tests/helpers/watch_python"), environment["PYTHONPATH"]])
    environment = {**environment, "PYTHONPATH": path, "NETWORK_LOG": str(log)}
    if network_of_its_own():
        command = [*UNSHARE, sys.executable, "-m", "tests.helpers.without_network", str(log), *command]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def _all_addresses_are_ours() -> None:
    """Brings the loopback device up, and adds a local route to everywhere (rtnetlink(7)) for IPv4 and IPv6."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, 0x8914, struct.pack("16sH14x", b"lo", 0x1 | 0x40))  # SIOCSIFFLAGS, IFF_UP | IFF_RUNNING
    device = struct.pack("=HHi", 8, 4, socket.if_nametoindex("lo"))  # RTA_OIF
    for family in (socket.AF_INET, socket.AF_INET6):
        # struct rtmsg: table local, protocol boot, scope host, type local
        message = struct.pack("=8BI", family, 0, 0, 0, 255, 3, 254, 2, 0) + device
        header = struct.pack("=IHHII", 16 + len(message), 24, 0x405, 1, 0)  # RTM_NEWROUTE; create, acknowledge
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:
            netlink.send(header + message)
            _, _, _, _, _, error = struct.unpack_from("=IHHIIi", netlink.recv(4096))
            if error and family == socket.AF_INET:  # there are machines without IPv6
                raise OSError(-error, os.strerror(-error))


def _in_words(packet: bytes) -> str:
    """Where a packet goes and the end of what it says."""
    packet = packet[14:]  # behind the Ethernet header
    family, place = (socket.AF_INET6, slice(24, 40)) if packet[0] >> 4 == 6 else (socket.AF_INET, slice(16, 20))
    content = "".join(chr(byte) if 32 < byte < 127 else "." for byte in packet[-60:])
    return f"packet to {socket.inet_ntop(family, packet[place])}: {content}"


def main() -> int:
    """The command's exit status."""
    log, *command = sys.argv[1:]
    _all_addresses_are_ours()
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as packets:  # ETH_P_ALL
        packets.bind(("lo", 0))
        status = subprocess.run(command, check=False).returncode
        packets.setblocking(False)
        with open(log, "a") as file, contextlib.suppress(BlockingIOError):  # the kernel has kept the first hundreds
            while True:
                file.write(_in_words(packets.recv(65536)) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
