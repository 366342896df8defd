"""The app on a socket."""

from __future__ import annotations

import socket

import uvicorn
from fastapi import FastAPI


def config(app: FastAPI, host: str, port: int, *, proxy_headers: bool = False) -> uvicorn.Config:
    """How uvicorn serves the app: the faster parser and loop if they are installed, our own request log.

    proxy_headers: believe X-Forwarded-* (only behind a proxy that sets them)
    """
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        access_log=False,
        log_config=None,  # logging belongs to the process, not to its web server
        server_header=False,
        proxy_headers=proxy_headers,
        timeout_graceful_shutdown=5,
    )


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, so that the port is known (0: any free one) and taken before anything else starts.

    Raises OSError if the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except BaseException:
        listener.close()
        raise
    listener.setblocking(False)
    return listener
