"""`/metrics` for Prometheus, and the count of requests by route and status."""

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from quart import Blueprint, Response, request
from quart_schema import operation_id

from service import metrics


def create_metrics_blueprint() -> Blueprint:
    """The exposition, and the counting of every request of the app."""
    blueprint = Blueprint("metrics", __name__)

    @blueprint.get("/metrics")
    @operation_id("metrics")
    async def exposition() -> Response:
        """Give all metrics in Prometheus' text format."""
        return Response(generate_latest(), content_type=CONTENT_TYPE_LATEST)

    @blueprint.after_app_request
    async def count(response: Response) -> Response:
        route = request.url_rule.rule if request.url_rule is not None else "unmatched"
        metrics.HTTP_REQUESTS.labels(route, response.status_code).inc()
        return response

    return blueprint
