"""This package, as it is deployed beside the peers: the door under granian, and a Celery worker."""

from __future__ import annotations

import os

from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from webhooks import Webhooks
from workers import make_celery

from ..doors import SECRET
from .fixtures import API_KEY

__all__ = ["app", "celery"]

app = Flask("ours", instance_path=os.environ["INSTANCE"])
app.config.update(
    SQLALCHEMY_DATABASE_URI=os.environ["DATABASE_URL"],
    CELERY={"broker_url": os.environ["REDIS_URL"]},
    WEBHOOKS={
        "stripe": {
            "secrets": [SECRET],
            "api_key": API_KEY,
            "api_base_url": os.environ["STRIPE_API"],
            "api_rate": 1_000_000,  # a simulated API need not be spared
            "fetch": os.environ["FETCH"] == "yes",
        }
    },
    WEBHOOKS_FRONT_DOOR=True,
)
db = SQLAlchemy(app)
webhooks = Webhooks(app)
app.register_blueprint(webhooks.blueprint, url_prefix="/webhooks")
with app.app_context():
    db.create_all()
celery = make_celery(app)
