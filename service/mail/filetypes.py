"""What a part claims to be, by its Content-Type, parameters and file name.

Names and types that senders give are hints and often wrong. A document is taken for one if either
says so; where neither says anything, the bytes will have to.
"""

from enum import StrEnum

from service.model import Part, Verdict


class Declared(StrEnum):
    """What a part is sent as, in words for people."""

    PDF = "PDF"
    SPREADSHEET = "a spreadsheet"
    TABLE = "CSV"
    IMAGE = "an image"
    TEXT = "text"
    OTHER = "another kind of file"
    UNKNOWN = "a file of no stated kind"


_DOCUMENT_EXTENSIONS = {
    "pdf": Declared.PDF,
    **dict.fromkeys(("xls", "xlsx", "xlsm", "xlsb", "xlt", "xltx", "xltm"), Declared.SPREADSHEET),
    **dict.fromkeys(("ods", "ots"), Declared.SPREADSHEET),
    **dict.fromkeys(("csv", "tsv", "tab"), Declared.TABLE),
}
_DOCUMENT_TYPES = {
    **dict.fromkeys(("application/pdf", "application/x-pdf", "application/acrobat"), Declared.PDF),
    **dict.fromkeys(("application/vnd.pdf", "text/pdf", "text/x-pdf"), Declared.PDF),
    **dict.fromkeys(("application/excel", "application/msexcel"), Declared.SPREADSHEET),
    **dict.fromkeys(("application/x-excel", "application/x-msexcel"), Declared.SPREADSHEET),
    **dict.fromkeys(("application/xls", "application/x-xls"), Declared.SPREADSHEET),
    **dict.fromkeys(("text/csv", "text/x-csv"), Declared.TABLE),
    **dict.fromkeys(("application/csv", "application/x-csv"), Declared.TABLE),
    **dict.fromkeys(("text/tsv", "text/tab-separated-values"), Declared.TABLE),
    **dict.fromkeys(("text/comma-separated-values",), Declared.TABLE),
}
_SPREADSHEET_FAMILIES = (
    "application/vnd.ms-excel",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.",
    "application/vnd.oasis.opendocument.spreadsheet",
)
_MEDIA = frozenset({"application", "audio", "font", "image", "message", "model", "text", "video"})
_GENERIC_TYPES = frozenset({
    "application/binary", "application/data", "application/download", "application/file",
    "application/force-download", "application/octet-stream", "application/octetstream",
    "application/unknown", "application/x-download", "application/x-force-download",
    "application/x-octet-stream", "application/x-unknown",
})  # fmt: skip
_IMAGE_EXTENSIONS = frozenset({
    "bmp", "emf", "gif", "heic", "heif", "ico", "jfif", "jpe", "jpeg", "jpg", "png", "svg", "tif",
    "tiff", "webp", "wmf", "wmz",
})  # fmt: skip
_OTHER_EXTENSIONS = frozenset({
    "7z", "apk", "avi", "bat", "bz2", "cmd", "css", "dll", "doc", "docm", "docx", "dot", "dotx",
    "eml", "eps", "exe", "gz", "htm", "html", "ics", "iso", "jar", "js", "json", "key", "m4a",
    "mov", "mp3", "mp4", "msg", "msi", "odp", "odt", "ogg", "pages", "pps", "ppsx", "ppt", "pptx",
    "ps", "psd", "rar", "rtf", "sql", "tar", "tgz", "txt", "vcf", "wav", "xml", "xz", "zip",
})  # fmt: skip
_NO_PROSE = frozenset({
    "message/global", "message/rfc822", "text/css", "text/directory", "text/javascript",
    "text/vcard", "text/x-amp-html", "text/x-vcard",
})  # fmt: skip

Refusal = tuple[Verdict, str]

_SIGNATURE = (Verdict.UNSUPPORTED, "a signature")
_PGP = (Verdict.ENCRYPTED, "PGP encryption")
_TNEF = (Verdict.UNSUPPORTED, "TNEF (winmail.dat), Outlook's own container")
_REFUSED_TYPES: dict[str, Refusal] = {
    "application/pkcs7-signature": _SIGNATURE,
    "application/x-pkcs7-signature": _SIGNATURE,
    "application/pgp-signature": _SIGNATURE,
    "application/pgp-keys": (Verdict.UNSUPPORTED, "a PGP key"),
    "application/pgp-encrypted": _PGP,
    "application/ms-tnef": _TNEF,
    "application/vnd.ms-tnef": _TNEF,
    "message/external-body": (Verdict.UNSUPPORTED, "a file kept elsewhere, which is not fetched"),
    "message/partial": (Verdict.UNSUPPORTED, "a piece of a message that was sent in pieces"),
}
_REFUSED_EXTENSIONS = {"p7s": _SIGNATURE, "sig": _SIGNATURE, "pgp": _PGP, "gpg": _PGP}
_SMIME_TYPES = frozenset({"application/pkcs7-mime", "application/x-pkcs7-mime"})
_SMIME_NOT_ENCRYPTED = {
    "signed-data": "S/MIME, signed in a way that hides the content",
    "certs-only": "S/MIME certificates",
    "compressed-data": "S/MIME compression",
}


def declare(part: Part) -> Declared:
    """What the part is sent as."""
    extension = extension_of(part)
    by_name = _DOCUMENT_EXTENSIONS.get(extension)
    if by_name or part.content_type.startswith("text/plain"):
        return by_name or Declared.TEXT
    if by_type := _DOCUMENT_TYPES.get(part.content_type):
        return by_type
    if part.content_type.startswith(_SPREADSHEET_FAMILIES):
        return Declared.SPREADSHEET
    return _declare_other(part.content_type, extension)


def refuse(part: Part) -> Refusal | None:
    """Encryption, signatures and containers that are named but never opened."""
    extension = extension_of(part)
    if part.content_type in _SMIME_TYPES or extension == "p7m":
        return _refuse_smime(part)
    if part.filename and part.filename.lower() == "winmail.dat":
        return _TNEF
    return _REFUSED_TYPES.get(part.content_type) or _REFUSED_EXTENSIONS.get(extension)


def is_text(part: Part) -> bool:
    """Whether the part is text to read with the message, and not a file."""
    if part.disposition == "attachment" or declare(part) is not Declared.TEXT:
        return False
    return part.content_type == "text/plain" or refuse(part) is None


def extension_of(part: Part) -> str:
    """The extension of the file name in lower case, without the dot."""
    return part.filename.rpartition(".")[2].strip().lower() if part.filename else ""


def _declare_other(content_type: str, extension: str) -> Declared:
    medium = content_type.partition("/")[0]
    if medium == "image":
        return Declared.IMAGE
    if medium in ("text", "message") and content_type not in _NO_PROSE:
        return Declared.TEXT
    if content_type in _GENERIC_TYPES or medium not in _MEDIA:
        if extension in _IMAGE_EXTENSIONS:
            return Declared.IMAGE
        return Declared.OTHER if extension in _OTHER_EXTENSIONS else Declared.UNKNOWN
    return Declared.OTHER


def _refuse_smime(part: Part) -> Refusal:
    """Without smime-type, smime.p7m is most often encrypted, and x.pdf.p7m a signed x.pdf."""
    smime_type = part.params.get("smime-type", "").lower()
    if reason := _SMIME_NOT_ENCRYPTED.get(smime_type):
        return Verdict.UNSUPPORTED, reason
    name = (part.filename or "smime.p7m").lower()
    if not smime_type and name.endswith(".p7m") and name != "smime.p7m":
        return Verdict.UNSUPPORTED, "a file inside a signature (p7m)"
    return Verdict.ENCRYPTED, "S/MIME encryption"
