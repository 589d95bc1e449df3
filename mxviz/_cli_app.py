"""`mxviz app`: start Streamlit on the app, from whatever folder, with the settings that lie beside it."""

from __future__ import annotations

import argparse
import os
import re
import socket
import sys

PUBLIC_OPTIONS = (
    "--server.enableXsrfProtection=true",
    "--server.enableCORS=true",
    "--server.enableStaticServing=false",
    "--server.maxMessageSize=32",
    "--server.disconnectedSessionTTL=60",
    "--client.showErrorDetails=none",
    "--client.toolbarMode=viewer",
    "--logger.level=warning",
    "--logger.hideWelcomeMessage=true",
)
"""What Streamlit is told besides where strangers come; docs/hosting.md says why."""


def app(args: argparse.Namespace) -> None:
    """Serve the app until it is interrupted.

    Raises:
        ValueError: where Streamlit is missing, the port cannot be opened, or a path or host is none.
    """
    try:
        from streamlit.web import cli as streamlit_cli
    except ImportError:
        raise ValueError(
            "the app needs Streamlit and Plotly; get them with: pip install 'mxviz[app]'"
        ) from None
    from mxviz._paths import APP

    found = options(args)
    _check_port(args.port, _address(args))
    if args.public:
        os.environ["MXVIZ_PUBLIC"] = "1"  # read by mxviz.views.limits
        os.environ["HF_HUB_OFFLINE"] = "1"  # nobody's name becomes a download
    from mxviz.views import microscope  # torch takes seconds: before the address is told, not after

    microscope.prepare()

    print(f"mxviz: http://localhost:{args.port}{_path(args)}  (Ctrl-C stops it)", file=sys.stderr, flush=True)
    streamlit_cli.main(["run", str(APP), *found], standalone_mode=False)


def options(args: argparse.Namespace) -> list[str]:
    """Return what Streamlit is told.

    Args:
        args: port, public, base_path and host, as parsed.

    Raises:
        ValueError: for a path or host that is none.
    """
    for host in args.host:
        if not re.fullmatch(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", host):
            raise ValueError(f"host {host!r:.80} is no name; expected one such as mxviz.example.org")
    found = [
        f"--server.port={args.port}",
        f"--server.address={_address(args)}",
        "--server.headless=true",
        "--server.fileWatcherType=none",
        "--browser.gatherUsageStats=false",
        *(f"--server.allowedHosts={host}" for host in args.host),
    ]
    if path := _path(args):
        found.append(f"--server.baseUrlPath={path}")
    if args.public:
        from mxviz.views.limits import PUBLIC_LIMITS

        found += [*PUBLIC_OPTIONS, f"--server.maxUploadSize={PUBLIC_LIMITS.upload_megabytes}"]
    return found


def _address(args: argparse.Namespace) -> str:
    return "0.0.0.0" if args.public else "127.0.0.1"


def _path(args: argparse.Namespace) -> str:
    path = args.base_path.strip("/")
    if path and not re.fullmatch(r"[\w~-]+(/[\w~-]+)*", path, re.ASCII):
        raise ValueError(f"base path {args.base_path!r:.80} is no path; expected one such as /mxviz")
    return f"/{path}" if path else ""


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
