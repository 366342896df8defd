"""A device plugin that offers `nvidia.com/gpu` where there are none: a kubelet counts and hands them out.

    python device_plugin.py --count 8

Speaks the kubelet's device plugin API v1beta1 over its sockets. The few messages are put together by hand, so
that nothing but grpcio is needed. A kubelet that restarts forgets its plugins and clears their sockets away:
then this registers again.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

FOLDER = Path("/var/lib/kubelet/device-plugins")
SOCKET = FOLDER / "ebbtide-gpu.sock"
_SERVICE = "v1beta1.DevicePlugin"
_LOOK_EVERY_S = 0.5


def field(number: int, value: bytes | str) -> bytes:
    """A length-delimited field of a protocol buffer."""
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def fields(message: bytes, number: int) -> list[bytes]:
    """All length-delimited values of this field in a message that has no others but such."""
    found, at = [], 0
    while at < len(message):
        key, at = _read_varint(message, at)
        length, at = _read_varint(message, at)
        if key >> 3 == number:
            found.append(message[at : at + length])
        at += length
    return found


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _list_and_watch(count: int, ended: threading.Event) -> Iterator[bytes]:
    """ListAndWatchResponse: all devices, healthy; then nothing changes until the end."""
    devices = (field(1, f"gpu-{number}") + field(2, "Healthy") for number in range(count))
    yield b"".join(field(1, device) for device in devices)
    ended.wait()


def allocate(request: bytes) -> bytes:
    """AllocateResponse: for each container, an environment variable that names its devices."""
    answers = []
    for container in fields(request, 1):
        devices = ",".join(value.decode() for value in fields(container, 1))
        answers.append(field(1, field(1, field(1, "NVIDIA_VISIBLE_DEVICES") + field(2, devices))))
    return b"".join(answers)


def _server(count: int, ended: threading.Event) -> grpc.Server:
    handlers = {
        "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(lambda _request, _context: b""),
        "ListAndWatch": grpc.unary_stream_rpc_method_handler(
            lambda _request, _context: _list_and_watch(count, ended)
        ),
        "Allocate": grpc.unary_unary_rpc_method_handler(lambda request, _context: allocate(request)),
        "GetPreferredAllocation": grpc.unary_unary_rpc_method_handler(lambda _request, _context: b""),
        "PreStartContainer": grpc.unary_unary_rpc_method_handler(lambda _request, _context: b""),
    }
    server = grpc.server(ThreadPoolExecutor(max_workers=8))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(_SERVICE, handlers)])
    server.add_insecure_port(f"unix://{SOCKET}")
    return server


def _register(resource: str) -> None:
    """RegisterRequest: our version, our socket's name, what we offer."""
    request = field(1, "v1beta1") + field(2, SOCKET.name) + field(3, resource)
    with grpc.insecure_channel(f"unix://{FOLDER / 'kubelet.sock'}") as channel:
        channel.unary_unary("/v1beta1.Registration/Register")(request, timeout=5)


def _serve_once(count: int, resource: str) -> None:
    """Serve until our socket is gone, which is how a kubelet says that it started anew."""
    ended = threading.Event()
    server = _server(count, ended)
    server.start()
    try:
        _register(resource)
        print(f"registered {count} {resource}", flush=True)
        while SOCKET.exists():
            ended.wait(_LOOK_EVERY_S)
    except grpc.RpcError as error:
        print(f"the kubelet does not take us yet: {error}", flush=True)
        ended.wait(_LOOK_EVERY_S)
    finally:
        ended.set()
        server.stop(0).wait()
        SOCKET.unlink(missing_ok=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="offer devices that do not exist to the kubelet of this machine"
    )
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--resource", default="nvidia.com/gpu")
    options = parser.parse_args()
    pause = threading.Event()
    while True:
        if (FOLDER / "kubelet.sock").exists():
            _serve_once(options.count, options.resource)
        else:
            pause.wait(_LOOK_EVERY_S)


if __name__ == "__main__":
    main()
