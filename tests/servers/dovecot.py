"""A Dovecot: IMAP and LMTP on loopback, any user name, the password is always `secret`.

Users come into being at their first mail or login, so a test takes a name of its own with
`new_user()`. Written for Dovecot 2.3; 2.4 reads another configuration format and does not start.
"""

import grp
import itertools
import os
import shutil
import smtplib
import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

import trustme
from imapclient import IMAPClient, imap_utf7

from tests.servers.process import (
    Daemon,
    free_port,
    greets,
    make_folder,
    require_program,
    unprivileged_user,
)

PASSWORD = "secret"
HOST = "127.0.0.1"

_CONFIG = """\
base_dir = {folder}/run
state_dir = {folder}/state
log_path = {folder}/log
protocols = imap lmtp
listen = 127.0.0.1
disable_plaintext_auth = no
first_valid_uid = 1
mail_location = maildir:{folder}/mail/%u
mail_uid = {uid}
mail_gid = {gid}
mail_max_userip_connections = 5000
auth_username_format = %Lu
passdb {{
  driver = static
  args = password={password}
}}
userdb {{
  driver = static
  args = uid={uid} gid={gid} home={folder}/mail/%u
}}
service imap-login {{
  chroot =
  process_min_avail = 2
  service_count = 0
  inet_listener imap {{
    port = {imap_port}
  }}
  inet_listener imaps {{
    port = {imaps_port}
    ssl = yes
  }}
}}
service imap {{
  process_limit = 2048
}}
service anvil {{
  chroot =
}}
service lmtp {{
  inet_listener lmtp {{
    address = 127.0.0.1
    port = {lmtp_port}
  }}
}}
ssl = {tls}
"""
_CERTIFICATE_CONFIG = """\
ssl_cert = <{folder}/cert.pem
ssl_key = <{folder}/key.pem
"""
# Without root, the processes that deal with strangers cannot be other users.
_OWN_USER_CONFIG = """\
default_internal_user = {user}
default_internal_group = {group}
default_login_user = {user}
"""


class Dovecot:
    """Ready once entered. With `tls` it offers STARTTLS on `imap_port` and TLS on `imaps_port`;
    its certificate is for `localhost` and 127.0.0.1, the issuer's certificate is in `ca_file`.
    """

    host = HOST
    password = PASSWORD

    def __init__(self, *, tls: bool = False) -> None:
        self._program = require_program("dovecot")
        self._tls = tls
        self.imap_port = free_port()
        self.imaps_port = free_port() if tls else 0
        self.lmtp_port = free_port()
        self._numbers = itertools.count(1)

    def __enter__(self) -> Self:
        self._folder = make_folder("dovecot")
        self.ca_file = self._folder / "ca.pem"
        config = self._write_config()
        log = self._folder / "log"
        log.touch(0o600)
        self._daemon = Daemon([self._program, "-F", "-c", str(config)], log)
        self._daemon.wait_ready(lambda: greets(self.imap_port, b"* OK"))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._daemon.terminate()
        # A child of it may outlive the master for a moment and still write.
        shutil.rmtree(self._folder, ignore_errors=True)

    def new_user(self) -> str:
        """A name that no other test has, with an empty mailbox."""
        return f"user{next(self._numbers)}@example.com"

    @contextmanager
    def client(self, user: str) -> Iterator[IMAPClient]:
        """A logged-in connection, over TLS where there is TLS."""
        with self._connect() as client:
            client.login(user, PASSWORD)
            yield client

    def append(
        self,
        user: str,
        *raws: bytes,
        folder: str = "INBOX",
        internaldate: datetime | None = None,
    ) -> None:
        """Store mails through IMAP APPEND, their bytes as given; the folder is made if missing."""
        date = {} if internaldate is None else {"date": internaldate}
        with self.client(user) as client:
            if not client.folder_exists(folder):
                client.create_folder(folder)
            # multiappend sends the bytes as they are, append would rewrite their line ends.
            client.multiappend(folder, [{"msg": raw, **date} for raw in raws])

    def deliver(self, user: str, raw: bytes) -> None:
        """Deliver a mail to INBOX through LMTP, which adds headers at its top."""
        with smtplib.LMTP(HOST, self.lmtp_port) as client:
            client.sendmail("sender@example.org", [user], raw)

    def write_maildir(
        self,
        user: str,
        raws: Iterable[bytes],
        *,
        folder: str = "INBOX",
        internaldate: datetime | None = None,
    ) -> None:
        """Put mails straight into the maildir, in the order of their UIDs: fast, for thousands."""
        maildir = self._maildir(user, folder)
        owner = unprivileged_user()
        for path in (maildir.parent, maildir, *(maildir / name for name in ("tmp", "new", "cur"))):
            path.mkdir(mode=0o700, exist_ok=True)
            os.chown(path, owner.pw_uid, owner.pw_gid)
        when = (internaldate or datetime.now(UTC)).timestamp()
        for raw in raws:
            unfinished = maildir / "tmp" / f"{int(when)}.{next(self._numbers):09}.localhost"
            unfinished.write_bytes(raw)
            os.utime(unfinished, (when, when))
            os.chown(unfinished, owner.pw_uid, owner.pw_gid)
            unfinished.rename(maildir / "new" / unfinished.name)

    def change_uidvalidity(self, user: str, folder: str = "INBOX") -> None:
        """Give the folder a new UIDVALIDITY and UIDs from 1 on; nobody may have it open."""
        maildir = self._maildir(user, folder)
        for path in (*maildir.glob("dovecot-uidlist*"), *maildir.glob("dovecot.index*")):
            path.unlink()

    def _maildir(self, user: str, folder: str) -> Path:
        root = self._folder / "mail" / user.lower()
        if folder == "INBOX":
            return root
        encoded: bytes = imap_utf7.encode(folder)
        return root / f".{encoded.decode()}"

    def _connect(self) -> IMAPClient:
        if not self._tls:
            return IMAPClient(HOST, self.imap_port, ssl=False, timeout=10)
        context = ssl.create_default_context(cafile=self.ca_file)
        return IMAPClient(HOST, self.imaps_port, ssl_context=context, timeout=10)

    def _write_config(self) -> Path:
        owner = unprivileged_user()
        mail = self._folder / "mail"
        mail.mkdir()
        os.chown(mail, owner.pw_uid, owner.pw_gid)
        parts = _CONFIG
        if self._tls:
            self._write_certificate()
            parts += _CERTIFICATE_CONFIG
        if os.geteuid() != 0:
            parts += _OWN_USER_CONFIG
        path = self._folder / "dovecot.conf"
        path.write_text(
            parts.format(
                folder=self._folder,
                uid=owner.pw_uid,
                gid=owner.pw_gid,
                user=owner.pw_name,
                group=grp.getgrgid(owner.pw_gid).gr_name,
                password=PASSWORD,
                imap_port=self.imap_port,
                imaps_port=self.imaps_port,
                lmtp_port=self.lmtp_port,
                tls="yes" if self._tls else "no",
            )
        )
        return path

    def _write_certificate(self) -> None:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(self.ca_file))
        certificate = authority.issue_cert("localhost", HOST)
        certificate.private_key_pem.write_to_path(str(self._folder / "key.pem"))
        for pem in certificate.cert_chain_pems:
            pem.write_to_path(str(self._folder / "cert.pem"), append=True)
