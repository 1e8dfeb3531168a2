"""Options of the store."""

from __future__ import annotations

from oslo_config import cfg

from devicetrack import conf as registry

GROUP = 'devicetrack_database'

OPTIONS = [
    cfg.StrOpt('connection', secret=True, help="""
SQLAlchemy URL of the store. Unset means the file ``devicetrack.sqlite`` in ``[devicetrack] state_path``: one file for
each host, fully durable and without a server, which we recommend. ``postgresql+psycopg2://`` and ``mysql+pymysql://``
URLs name a database that hosts may share; commands over many hosts need one.
"""),
    cfg.IntOpt('max_pool_size', default=5, min=1, max=100, help="""
Maximum number of connections for reading. All threads write through one further connection, which commits waiting
writes together. Raise it when many threads read at once.
"""),
    cfg.IntOpt('busy_timeout_s', default=30, min=1, max=600, help="""
Seconds that a transaction waits for another writer's lock. After this time it fails and nothing is written.
"""),
]


def register(conf: cfg.ConfigOpts) -> None:
    registry.register(conf, GROUP, OPTIONS)
