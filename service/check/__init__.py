"""The check of e-mail addresses: what they say themselves, and what DNS or an API says of a domain.

Knows no database. An address gets its verdict offline (`address`) where that is certain; else its
domain is asked about through a `DomainCheck` (`domain_check`).
"""
