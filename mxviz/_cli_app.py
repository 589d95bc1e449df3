"""`mxviz app`: start Streamlit on the app, from whatever folder, with the settings that lie beside it."""

from __future__ import annotations

import argparse
import socket
import sys


def app(args: argparse.Namespace) -> None:
    """Serve the app until it is interrupted.

    Raises:
        ValueError: where Streamlit is missing, or the port cannot be opened.
    """
    try:
        from streamlit.web import cli as streamlit_cli
    except ImportError:
        raise ValueError(
            "the app needs Streamlit and Plotly; get them with: pip install 'mxviz[app]'"
        ) from None
    from mxviz._paths import APP

    address = "0.0.0.0" if args.public else "127.0.0.1"
    _check_port(args.port, address)
    import mxviz.views.microscope  # noqa: F401  torch takes seconds: before the address is told, not after

    print(f"mxviz: http://localhost:{args.port}  (Ctrl-C stops it)", file=sys.stderr, flush=True)
    options = [
        f"--server.port={args.port}",
        f"--server.address={address}",
        "--server.headless=true",
        "--server.fileWatcherType=none",
        "--browser.gatherUsageStats=false",
    ]
    streamlit_cli.main(["run", str(APP), *options], standalone_mode=False)


def _check_port(port: int, address: str) -> None:
    if not 1 <= port <= 65535:
        raise ValueError(f"port {port} does not exist; expected 1 to 65535")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            reason = error.strerror.lower()
            raise ValueError(f"port {port} cannot be opened ({reason}); choose another with --port") from None
