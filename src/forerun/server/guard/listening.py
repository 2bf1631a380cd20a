"""The listening socket of a server, bound before anything slow begins."""

import os
import socket

from forerun.server.config import AddressError, ServerConfig
from forerun.wires.endpoint import Address, is_loopback, resolve


def bind(config: ServerConfig) -> socket.socket:
    """A listening socket. The port is not shared, so a second server on the same port gets an error.

    Raises:
        AddressError: the address is in use, not permitted or not this machine's, or other machines could reach it
            without a key.
    """
    address = Address(server=config.host, port=config.port)
    try:
        resolved = resolve(address)
    except (OSError, ValueError) as error:
        raise AddressError(f"cannot listen on {address}: {error}; name a host of this machine") from error
    strangers = [str(where[0]) for _, where in resolved if not is_loopback(str(where[0]))]
    if strangers and not config.api_keys and not config.insecure_no_auth:
        raise AddressError(
            f"{address} can be reached from other machines ({', '.join(strangers)}): give a key with api_key_file, or "
            "listen on 127.0.0.1 and use a tunnel"
        )
    family, where = resolved[0]
    try:
        listener = socket.create_server(where, family=family, backlog=min(config.max_connections, 1024))
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise AddressError(
            f"cannot listen on {address} ({reason}): choose another port, or end the process that uses it"
        ) from error
    # Accepted connections inherit this option. Without it the system delays an event until the data before it is
    # acknowledged, which a client may delay by 40 ms. asyncio sets it only on sockets created with a protocol number.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def url_of(listener: socket.socket) -> str:
    """The URL for a browser on this machine."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
