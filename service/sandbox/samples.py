"""The mails that the demo sends to itself, made in code: one for each thing the triage decides.

Their texts and files are always the same; dates are the current time, and the Message-IDs hold
the run's id, so that a second run of the demo is not taken for duplicates of the first.
"""

from datetime import UTC, datetime
from email.message import EmailMessage
from typing import cast

from service.sandbox.files import (
    make_csv,
    make_jpeg,
    make_logo_png,
    make_pdf,
    make_xlsx,
    make_zip,
)

_RECIPIENT = "demo@example.com"
_ORDERS = (
    ("Order", "Article", "Quantity", "Price"),
    ("4711", "Café crème, 500 g", "12", "7.90"),
    ("4712", "Thé vert, 100 g", "30", "4.50"),
    ("4713", "Grüner Tee, 100 g", "8", "5.20"),
)


def sample_mails(run_id: str) -> list[EmailMessage]:
    """Six mails to demo@example.com; the last is the first once more, to be dropped."""
    invoice = _invoice(run_id)
    return [
        invoice,
        _order_list(run_id),
        _newsletter(run_id),
        _forward(run_id),
        _photo(run_id),
        invoice,
    ]


def verification_mail(run_id: str) -> EmailMessage:
    """What a service sends to confirm an address: a code and a link, both of this run."""
    code = f"{int(run_id, 16) % 1_000_000:06}"
    link = f"https://example.org/verify?token={run_id[:12]}"
    mail = _new_mail("verify", run_id, "noreply@example.org", "Verify your e-mail address")
    mail.set_content(f"Welcome!\n\nYour verification code is {code}.\n\nOr click here: {link}\n")
    mail.add_alternative(
        f"<p>Welcome!</p><p>Your verification code is <b>{code}</b>.</p>"
        f'<p><a href="{link}">Verify my address</a></p>',
        subtype="html",
    )
    return mail


def _invoice(run_id: str) -> EmailMessage:
    """A PDF to extract beside a logo that is only decoration."""
    mail = _new_mail("invoice", run_id, "billing@example.org", "Invoice 2041 for café supplies")
    mail.set_content("Dear customer,\n\nplease find our invoice 2041 attached.\n")
    mail.add_alternative(
        '<p><img src="cid:logo@example.org" alt="Example"></p>'
        "<p>Dear customer,</p><p>please find our invoice 2041 attached.</p>",
        subtype="html",
    )
    html = cast(EmailMessage, mail.get_payload(1))
    html.add_related(
        make_logo_png(),
        "image",
        "png",
        cid="<logo@example.org>",
        disposition="inline",
        filename="logo.png",
    )
    invoice = ("Invoice 2041", "Coffee beans, 12 kg: 94.80 EUR", "Total due: 94.80 EUR")
    _attach(mail, make_pdf(invoice), "application/pdf", "invoice-2041.pdf")
    return mail


def _order_list(run_id: str) -> EmailMessage:
    """Two tables to extract, the text goes along as their context."""
    mail = _new_mail("orders", run_id, "orders@example.net", "Order list of this week")
    mail.set_content("Hello,\n\nthe open orders, once as a workbook and once as CSV.\n")
    workbook = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
    _attach(mail, make_xlsx(_ORDERS), workbook, "orders.xlsx")
    mail.add_attachment(make_csv(_ORDERS), subtype="csv", filename="orders.csv")
    return mail


def _newsletter(run_id: str) -> EmailMessage:
    """No file and no plain text: the HTML, made readable, becomes the document."""
    mail = _new_mail("newsletter", run_id, "news@example.org", "What is new: März & avril")
    mail.set_content(
        "<html><head><style>h1 {color: #246}</style></head><body>"
        "<h1>What is new</h1><p>Our <b>spring</b> opening hours:</p>"
        "<ul><li>Monday to Friday: 8 to 18</li><li>Saturday: 9 to 13</li></ul>"
        '<p><a href="https://example.org/news">Read more</a></p></body></html>',
        subtype="html",
    )
    return mail


def _forward(run_id: str) -> EmailMessage:
    """The document is inside the forwarded mail."""
    original = _new_mail("contract", run_id, "legal@example.net", "Signed contract")
    original.set_content("The contract, signed by both sides.\n")
    contract = ("Contract 88", "between Example Ltd and Example GmbH", "Signed in Zurich")
    _attach(original, make_pdf(contract), "application/pdf", "Contract 88, Zürich.pdf")
    mail = _new_mail("forward", run_id, "assistant@example.com", "Fwd: Signed contract")
    mail.set_content("For your files, see the mail below.\n")
    mail.add_attachment(original)
    return mail


def _photo(run_id: str) -> EmailMessage:
    """Two files that are not documents."""
    mail = _new_mail("photo", run_id, "colleague@example.com", "Photo of the shelf")
    mail.set_content("The shelf after the delivery, and the drawings as an archive.\n")
    _attach(mail, make_jpeg(60_000), "image/jpeg", "shelf.jpg")
    _attach(
        mail, make_zip({"drawing.txt": b"shelf, 80 x 200 cm\n"}), "application/zip", "drawings.zip"
    )
    return mail


def _new_mail(name: str, run_id: str, sender: str, subject: str) -> EmailMessage:
    mail = EmailMessage()
    mail["From"] = sender
    mail["To"] = _RECIPIENT
    mail["Subject"] = subject
    mail["Date"] = datetime.now(UTC)
    mail["Message-ID"] = f"<{name}.{run_id}@example.com>"
    return mail


def _attach(mail: EmailMessage, content: bytes, content_type: str, filename: str) -> None:
    maintype, subtype = content_type.split("/")
    mail.add_attachment(content, maintype, subtype, filename=filename)
