"""The peak memory of a replica while it takes a mailbox of large mails."""

from pathlib import Path

from benchmarks.mails import mailbox_mails
from benchmarks.report import Figure
from benchmarks.stage import Amount, Stage, announce

# Just below the default of EXTRACT_MAX_BYTES: the largest file that is taken.
ATTACHMENT_BYTES = 25 * 1024 * 1024 - 1024


def measure(stage: Stage, *, quick: bool) -> list[Figure]:
    """Peak resident memory, and how fast it went."""
    mails = 8 if quick else 40
    user = stage.dovecot.new_user()
    announce(f"memory: writing {mails} mails with 25 MB each")
    stage.fill_mailbox(user, mailbox_mails(user, mails, pdf_every=1, pdf_bytes=ATTACHMENT_BYTES))
    with stage.database() as url:
        stage.add_mailboxes(url, [user], stage.dovecot.imap_port, idle=False)
        with stage.replicas(url, 1, POLL_INTERVAL_SECONDS="1", POLL_TIMEOUT_SECONDS="3600") as (
            replica,
        ):
            announce("memory: running")
            run = stage.ingest(url, Amount(1, mails, files=mails))
            peak_mb = peak_resident_bytes(replica.process.pid) / 1e6
    return [
        Figure("memory", "peak of the process", "MB", [peak_mb], at_most=200),
        Figure("memory", "seconds a mail", "s", [run.seconds / mails]),
    ]


def peak_resident_bytes(pid: int) -> int:
    """VmHWM of a process (Linux)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmHWM: this needs Linux")
