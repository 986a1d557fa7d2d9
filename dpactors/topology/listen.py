"""What a ``listen`` setting means on a host, and which addresses only this machine can reach."""

import ipaddress
import re

_LISTEN = re.compile(r"(?:\[([^\[\]]*)\]|([^:\[\]]*)):([0-9]{1,5})")
_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*\.?")
PORT_MAX = 65535


def listen_address(listen: str, host_address: str, index: int) -> str:
    """``:8000`` or ``10.0.0.1:800{index}`` as the ``host:port`` of one instance; IPv6 in brackets."""
    host, port = split_address(listen.replace("{index}", str(index)))
    return join_address(host or host_address, port)


def split_address(text: str) -> tuple[str, int]:
    """``host:port`` in two; the host may be empty. Raises ValueError that says the form."""
    match = _LISTEN.fullmatch(text)
    if match is None or int(match[3]) > PORT_MAX:
        raise ValueError(f"{text} is no address and port: the form is HOST:PORT or :PORT, ports up to {PORT_MAX}")
    host = match[1] or match[2] or ""
    if host and not (is_address(host) and (":" in host) == bool(match[1])):
        raise ValueError(f"{host} is neither an IP address nor a host name")
    return host, int(match[3])


def join_address(host: str, port: int) -> str:
    """``host:port``, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_address(host: str) -> bool:
    """Whether `host` is an IP address or may be a host name."""
    return _ip(host) is not None or (
        _HOST_NAME.fullmatch(host) is not None and not host.replace(".", "").isdigit() and len(host) <= 253  # noqa: PLR2004 - RFC 1035
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    address = _ip(host)
    return address.is_loopback if address is not None else host.lower() == "localhost"


def is_wildcard(host: str) -> bool:
    """Whether `host` stands for every address of its machine."""
    address = _ip(host)
    return address is not None and address.is_unspecified


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
