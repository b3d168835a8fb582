"""What a module imports, and which of it talks to the outside: HTTP, mail and cloud clients."""

import ast
from collections.abc import Callable, Iterator

from service.review_gate.syntax import called_name, path_of, root_of, statements_of, words

CLIENTS = words(
    """
    aio_pika aioboto3 aiobotocore aiohttp aioimaplib aiokafka aioredis aiosmtplib anthropic
    asyncssh azure boto boto3 botocore cohere confluent_kafka django.core.mail dns elasticsearch
    fastapi_mail firebase_admin flask_mail ftplib google.cloud google.genai googleapiclient
    googlemaps grpc gspread http.client httpcore httplib2 httpx imaplib imapclient kafka litellm
    mailchimp_transactional minio mistralai motor msgraph niquests openai opensearchpy paramiko
    pika poplib postmarker pycurl pymongo redis resend requests requests_oauthlib sendgrid
    slack_sdk smtplib stripe telegram telnetlib treq tweepy twilio urllib.request urllib3
    websocket websockets xmlrpc.client yagmail zeep
    """
)
_NOT_CLIENTS = words(
    "aiohttp.web grpc.StatusCode httpx.codes redis.exceptions requests.exceptions "
    "urllib.request.url2pathname"
)

_BLOCKING = words(
    """
    boto3.client boto3.resource django.core.mail.mail_admins django.core.mail.mail_managers
    django.core.mail.send_mail django.core.mail.send_mass_mail dns.query.https dns.query.tcp
    dns.query.tls dns.query.udp dns.resolver.query dns.resolver.resolve ftplib.FTP ftplib.FTP_TLS
    imapclient.IMAPClient imaplib.IMAP4 imaplib.IMAP4_SSL os.popen os.system
    pika.BlockingConnection poplib.POP3 poplib.POP3_SSL smtplib.LMTP smtplib.SMTP smtplib.SMTP_SSL
    socket.create_connection socket.getaddrinfo socket.gethostbyaddr socket.gethostbyname
    subprocess.call subprocess.check_call subprocess.check_output subprocess.getoutput
    subprocess.run time.sleep urllib.request.urlopen urllib.request.urlretrieve urllib3.request
    """
) | {
    f"{client}.{verb}"
    for client in ("httpx", "requests")
    for verb in words("delete get head options patch post put request stream")
}
# Their resources are called on the module itself: stripe.Charge.create(…).
_BLOCKING_MODULES = words("openai resend stripe")
# What a call of one of these gives talks to the outside when its methods are called …
_MAKES_CLIENT = tuple(
    words(
        """
        Anthropic Client Connection Elasticsearch EmailMessage EmailMultiAlternatives FTP FTP_TLS
        IMAP4 IMAP4_SSL LMTP OpenAI OpenSearch POP3 POP3_SSL PoolManager Redis Resolver SMTP
        SMTP_SSL Session client from_url resource session
        """
    )
)
# … except for these,
_WAITS_FOR_NOTHING = words("attach attach_alternative attach_file close")
# … and here when what they give is awaited.
_AWAITED_CLIENTS = words(
    "aioboto3 aiobotocore aiohttp aioredis aiosmtplib dns.asyncresolver motor redis.asyncio"
)


def _is_in(name: str, modules: frozenset[str]) -> bool:
    parts = name.split(".")
    return any(".".join(parts[:count]) in modules for count in range(1, len(parts) + 1))


class Imports:
    """The imports of a module, those inside functions too."""

    def __init__(self, tree: ast.Module) -> None:
        self._origins: dict[str, str] = {}
        self.clients: list[tuple[ast.stmt, str]] = []
        for node in statements_of(tree, in_all_scopes=True):
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._add(node)
        self.clients.sort(key=lambda one: one[0].lineno)

    def _add(self, node: ast.Import | ast.ImportFrom) -> None:
        for local, name in _imported(node):
            self._origins[local] = name if local != name.partition(".")[0] else local
            if _is_in(name, CLIENTS) and not _is_in(name, _NOT_CLIENTS):
                self.clients.append((node, name))

    def origin(self, expr: ast.expr) -> str:
        """What `expr` is called where it comes from: `httpx.get`; empty for what has no name."""
        path = path_of(expr)
        if path is None:
            return ""
        root = root_of(path)
        return self._origins.get(root, root) + path[len(root) :]

    def is_blocking(self, call: ast.Call, maker_of: Callable[[str], ast.expr | None]) -> bool:
        """Whether it waits for the outside by itself, with nothing to await.

        `maker_of(path)`: what was assigned to it, or a call of the class it is annotated with.
        """
        origin = self.origin(call.func)
        alias = maker_of(call.func.id) if isinstance(call.func, ast.Name) else None
        if origin in _BLOCKING or (alias is not None and self.origin(alias) in _BLOCKING):
            return True
        if not isinstance(call.func, ast.Attribute) or call.func.attr in _WAITS_FOR_NOTHING:
            return False
        if _is_in(origin, _BLOCKING_MODULES) and origin.count(".") > 1:
            return call.func.attr.islower()
        owner: ast.AST | None = call.func
        while isinstance(owner, ast.Attribute):
            owner = owner.value
            path = path_of(owner)
            value = maker_of(path) if path else owner
            if isinstance(value, ast.Call) and self._makes_client(value):
                return True
        return False

    def _makes_client(self, call: ast.Call) -> bool:
        origin = self.origin(call.func)
        return (
            _is_in(origin, CLIENTS)
            and not _is_in(origin, _AWAITED_CLIENTS)
            and "Async" not in called_name(call)
            and called_name(call).endswith(_MAKES_CLIENT)
        )


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """(local name, full name); what is imported relatively is the code base's own."""
    if isinstance(node, ast.Import):
        for one in node.names:
            yield one.asname or one.name.partition(".")[0], one.name
    elif node.module is not None:
        prefix = "." * node.level + node.module
        for one in node.names:
            yield one.asname or one.name, f"{prefix}.{one.name}"
    else:
        for one in node.names:
            yield one.asname or one.name, "." * node.level + one.name
