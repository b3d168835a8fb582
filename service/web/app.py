"""The quart-trio app with all its resources."""

from quart.wrappers.base import BaseRequestWebsocket
from quart_trio import QuartTrio
from werkzeug.exceptions import BadHost
from werkzeug.routing import MapAdapter

from service.db.pool import Database
from service.health import Health
from service.listing import Listings
from service.settings import Settings
from service.waits import Waits
from service.web.auth import Gate
from service.web.docs import create_docs_blueprint
from service.web.health import create_health_blueprint
from service.web.messages import create_messages_blueprint
from service.web.metrics import create_metrics_blueprint
from service.web.openapi import install_openapi
from service.web.overload import refuse_early
from service.web.problems import register_problems
from service.web.requests import create_requests_blueprint


def create_app(
    db: Database, health: Health, settings: Settings, listings: Listings, waits: Waits
) -> QuartTrio:
    """The app with all its resources."""
    app = _App("service", static_folder=None)
    app.config["PUBLIC_BASE_URL"] = settings.public_base_url
    register_problems(app)
    gate = Gate(db, settings.rate_limit_per_minute)
    app.register_blueprint(create_messages_blueprint(gate, listings, waits))
    app.register_blueprint(create_requests_blueprint(gate, db))
    app.register_blueprint(create_health_blueprint(db, health))
    app.register_blueprint(create_metrics_blueprint())
    app.register_blueprint(create_docs_blueprint())
    install_openapi(app)
    app.asgi_app = refuse_early(app.asgi_app, waits, settings.public_base_url)  # type: ignore[method-assign,assignment]
    return app


class _App(QuartTrio):
    def create_url_adapter(self, request: BaseRequestWebsocket | None) -> MapAdapter | None:
        """No route depends on the host, so one that is none is no reason to fail."""
        try:
            return super().create_url_adapter(request)
        except BadHost:
            if request is None:
                raise
            return self.url_map.bind("", path_info=request.path, default_method=request.method)
