"""The mail sandbox of the demo: SMTP in, IMAP out, loopback only, in a child process of its own.

`client` is what the service uses; `server` and `inbox` run inside the child and need the packages
of the extra `demo`; `samples` makes the mails that the demo sends.
"""
