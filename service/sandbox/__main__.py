"""`python -m service.sandbox`: arguments and environment → the servers → exit code.

Exit 0 when asked to stop, 1 with one line on standard error when it cannot serve.
"""

import argparse
import asyncio
import os
import sys

from service.errors import MailroomError, SettingsError


def main() -> int:
    options = _parse_arguments()
    try:
        _run(options)
    except MailroomError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m service.sandbox",
        description="A mail catcher on loopback: SMTP in, IMAP out, one user, all in memory.",
        epilog="The password is read from the environment variable SANDBOX_PASSWORD. "
        "It serves until its standard input closes.",
    )
    parser.add_argument("--imap-port", type=_port, default=0, help="0: any free port")
    parser.add_argument("--smtp-port", type=_port, default=0, help="0: any free port")
    parser.add_argument("--user", default="demo@example.com", help="who may log in")
    return parser.parse_args()


def _port(text: str) -> int:
    number = int(text)
    if number not in range(65536):
        raise argparse.ArgumentTypeError("a port is a number from 0 to 65535")
    return number


def _run(options: argparse.Namespace) -> None:
    password = os.environ.pop("SANDBOX_PASSWORD", "")
    if not password:
        raise SettingsError("SANDBOX_PASSWORD is not set")
    try:
        from service.sandbox.server import serve
    except ImportError as error:
        raise MailroomError(
            f"the mail sandbox needs the extra demo ({error}): pip install 'mailroom[demo]'"
        ) from error
    ports = {"imap_port": options.imap_port, "smtp_port": options.smtp_port}
    asyncio.run(serve(options.user, password, **ports))


if __name__ == "__main__":
    sys.exit(main())
